"""Elementary functions: errors in units of the last place against float64, and special values."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from kernelyard_native_cpu import _native
from kernelyard_native_cpu.codegen import math as functions
from kernelyard_native_cpu.codegen.elementary import Emit
from kernelyard_native_cpu.codegen.emitter import FunctionEmitter
from kernelyard_native_cpu.codegen.values import Value, int_literal, vector_type
from kernelyard_native_cpu.library import LIBRARY_FUNCTIONS
from kernelyard_native_cpu.machine import Machine, resolve_machine

LEAST = 1.1754943508222875e-38
SPECIAL = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.0,
    0.5,
    2.0,
    1e-40,
    -1e-40,
    1e-8,
    88.7,
    88.8,
    -87.5,
    -104.5,
]
SPECIAL += [1e10, 3e38, -3e38]
# name: (float64 reference, allowed error in ulp)
CASES = {
    "exp": (np.exp, 1.1),
    "expm1": (np.expm1, 2.0),
    "log": (np.log, 1.5),
    "log1p": (np.log1p, 1.0),
    "tanh": (np.tanh, 2.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3.0),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), 2.0),
    "sqrt": (np.sqrt, 0.51),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
    "sin": (np.sin, 1.0),
    "cos": (np.cos, 1.0),
    "tan": (np.tan, 1.0),
    "asin": (np.arcsin, 1.0),
    "acos": (np.arccos, 1.0),
    "atan": (np.arctan, 1.0),
    "sinh": (np.sinh, 1.0),
    "cosh": (np.cosh, 1.0),
    "asinh": (np.arcsinh, 1.0),
    "acosh": (np.arccosh, 1.0),
    "atanh": (np.arctanh, 1.0),
}


def write_loop(name: str, function: Emit, type_: str, lanes: int, machine: Machine, used: set[str]) -> str:
    """A function that maps an array, so many lanes at a time."""
    e = FunctionEmitter([Value("%x", "ptr"), Value("%y", "ptr"), Value("%n", "i64")], used, machine.has_fma)

    def body(i: Value, _: list[Value]) -> list[Value]:
        source = e.here(f"getelementptr {type_}, ptr %x, i64 {i.ref}", "ptr")
        value = e.here(f"load {vector_type(type_, lanes)}, ptr {source.ref}, align 4", type_, lanes)
        result = function(e, value)
        target = e.here(f"getelementptr {type_}, ptr %y, i64 {i.ref}", "ptr")
        e.line(f"store {result.typed}, ptr {target.ref}, align 4")
        return []

    e.loop(int_literal(0), Value("%n", "i64"), body, step=lanes)
    return e.finish(name)


def compile_functions(mcpu: str | None, type_: str) -> tuple[_native.LinkedObjects, Machine]:
    machine, used = resolve_machine(mcpu), set()
    lanes = machine.vector_bits // (32 if type_ == "float" else 64)
    texts = [
        write_loop(f"ky_{name}", function, type_, lanes, machine, used) for name, function in functions.UNARY.items()
    ]
    attributes = f'attributes #0 = {{ nounwind "prefer-vector-width"="{machine.vector_bits}" }}'
    head = f'target triple = "{_native.triple(machine)}"'
    text = "\n".join([head, *texts, *sorted(used), attributes, "attributes #1 = { nounwind willreturn memory(none) }"])
    return _native.LinkedObjects(
        [_native.compile_object(text, machine)], [f"ky_{name}" for name in functions.UNARY]
    ), machine


@pytest.fixture(scope="module", params=[None, "x86-64-v3", "x86-64"], ids=["host", "v3", "baseline"])
def floats(request):
    return compile_functions(request.param, "float")[0]


@pytest.fixture(scope="module")
def doubles():
    return compile_functions(None, "double")[0]


def apply(library: _native.LinkedObjects, name: str, x: np.ndarray) -> np.ndarray:
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(library.addresses[f"ky_{name}"])
    y = np.empty_like(x)
    call(x.ctypes.data, y.ctypes.data, len(x))
    return y


def arguments(dtype: type) -> np.ndarray:
    rng = np.random.default_rng(7)
    spread = np.exp(rng.uniform(-80, 80, 4000)) * rng.choice([-1, 1], 4000)
    x = np.concatenate(
        [SPECIAL, rng.standard_normal(4000), rng.uniform(-1, 1, 4000), rng.uniform(-100, 100, 4000), spread]
    )
    return np.concatenate([x, np.zeros(-len(x) % 64)]).astype(dtype)


def test_every_function_has_a_case():
    assert set(CASES) == set(functions.UNARY)


@pytest.mark.parametrize("name", CASES)
def test_float_errors(floats, name):
    reference, allowed = CASES[name]
    x = arguments(np.float32)
    y = apply(floats, name, x)
    with np.errstate(all="ignore"):
        exact = np.asarray(reference(x.astype(np.float64)))
        rounded = exact.astype(np.float32)
    normal = np.isfinite(rounded) & (np.abs(rounded) > 2 * LEAST)
    errors = np.abs(y[normal] - exact[normal]) / np.spacing(np.abs(rounded[normal])).astype(np.float64)
    assert errors.max() <= allowed, f"{errors.max():.2f} ulp at {x[normal][errors.argmax()]!r}"
    rest, wanted = y[~normal], rounded[~normal]
    both_finite = np.isfinite(rest) & np.isfinite(wanted)
    distance = np.abs(np.where(both_finite, rest, 0) - np.where(both_finite, wanted, 0))
    same = (rest == wanted) | (np.isnan(rest) & np.isnan(wanted)) | (both_finite & (distance <= 2 * LEAST))
    assert same.all(), list(zip(x[~normal][~same], rest[~same], wanted[~same], strict=True))[:4]


@pytest.mark.parametrize("name", CASES)
def test_double_errors(doubles, name):
    x = arguments(np.float64)
    y = apply(doubles, name, x)
    with np.errstate(all="ignore"):
        wanted = np.asarray(CASES[name][0](x))
    np.testing.assert_allclose(y, wanted, rtol=2e-15, atol=1e-300)


def test_tanh_and_erf_keep_the_sign_of_zero(floats):
    x = np.full(64, -0.0, np.float32)
    for name in ("tanh", "erf", "sin", "asinh", "sinh"):
        assert np.signbit(apply(floats, name, x)).all(), name


def test_every_library_function_that_is_called_can_be_linked():
    machine, used = resolve_machine("x86-64"), set()
    for type_ in ("float", "double"):
        for name, function in functions.UNARY.items():
            write_loop(name, function, type_, 2, machine, used)
    called = {line.split("@")[1].split("(")[0] for line in used if "@llvm." not in line}
    assert called
    assert called <= set(LIBRARY_FUNCTIONS)
    assert set(_native.library_functions()) == set(LIBRARY_FUNCTIONS)
