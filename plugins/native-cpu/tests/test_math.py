"""Elementary functions: errors in units of the last place against float64 over all floats, and special values."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from math_errors import CASES, EMITTERS, MathLibrary, all_floats, compile_functions, errors, operands_of, write_loop

from kernelyard_native_cpu import _native
from kernelyard_native_cpu.codegen.unary_functions import UNARY_FUNCTIONS
from kernelyard_native_cpu.library import LIBRARY_FUNCTIONS
from kernelyard_native_cpu.machine import resolve_machine

README = Path(__file__).parents[1] / "README.md"
STRIDE = 4093  # a prime: a million floats, of every exponent
LEAST, LARGEST = float(np.float32(2.0**-126)), float(np.finfo(np.float32).max)
SPECIAL = [
    0.0,
    math.inf,
    math.nan,
    2.0**-149,
    2.0**-127,
    LEAST,
    1e-8,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    88.7,
    88.8,
    1e10,
    LARGEST,
]
SPECIAL += [-x for x in SPECIAL] + [-87.5, -103.9, -104.5]


@pytest.fixture(scope="module", params=[None, "x86-64-v3", "x86-64"], ids=["host", "v3", "baseline"])
def floats(request: pytest.FixtureRequest) -> MathLibrary:
    return compile_functions(request.param, "float")


@pytest.fixture(scope="module")
def doubles() -> MathLibrary:
    return compile_functions(None, "double")


def padded(values: list[float], dtype: type) -> np.ndarray:
    return np.concatenate([values, np.zeros(-len(values) % 64)]).astype(dtype)


def test_every_function_has_a_case():
    assert set(CASES) == set(EMITTERS) == {*UNARY_FUNCTIONS, "pow"}


@pytest.mark.parametrize("name", CASES)
def test_float_errors(floats: MathLibrary, name: str):
    """Over the whole range: subnormal arguments and results count in units of 2**-149."""
    for x in [*all_floats(STRIDE), padded(SPECIAL, np.float32)]:
        operands = operands_of(name, x)
        off = errors(name, operands, floats(name, *operands))
        at = [float(operand[off.argmax()]) for operand in operands]
        assert off.max() <= CASES[name][1], f"{off.max():.2f} units off at {at}"


def test_powers_of_special_values(floats: MathLibrary):
    pairs = list(itertools.product([*SPECIAL, -3.0, 0.25], repeat=2))
    x, y = (padded([pair[n] for pair in pairs], np.float32) for n in (0, 1))
    off = errors("pow", (x, y), floats("pow", x, y))
    assert off.max() <= CASES["pow"][1], list(zip(x[off > 1], y[off > 1], strict=True))[:4]


def test_the_bounds_are_the_readmes():
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name: float(bound) for name, bound, _ in rows} == {name: bound for name, (_, bound) in CASES.items()}
    assert all(float(measured) <= float(bound) for _, bound, measured in rows)


@pytest.mark.parametrize("name", CASES)
def test_double_errors(doubles: MathLibrary, name: str):
    rng = np.random.default_rng(7)
    spread = np.exp(rng.uniform(-80, 80, 4000)) * rng.choice([-1, 1], 4000)
    values = [rng.standard_normal(4000), rng.uniform(-1, 1, 4000), rng.uniform(-100, 100, 4000), spread]
    x = padded(np.concatenate([SPECIAL, *values]).tolist(), np.float64)
    operands = (x, np.roll(x, 1)) if name == "pow" else (x,)
    with np.errstate(all="ignore"):
        wanted = np.asarray(CASES[name][0](*operands))
    np.testing.assert_allclose(doubles(name, *operands), wanted, rtol=2e-15, atol=1e-300)


def test_odd_functions_keep_the_sign_of_zero(floats: MathLibrary):
    x = np.full(64, -0.0, np.float32)
    for name in ("tanh", "erf", "sin", "tan", "asin", "atan", "asinh", "atanh", "sinh", "expm1", "log1p", "sqrt"):
        assert np.signbit(floats(name, x)).all(), name


@pytest.mark.parametrize("name", ["exp", "expm1", "tanh", "sigmoid", "erf"])
def test_not_a_number_stays_whatever_its_bits(floats: MathLibrary, name: str):
    """Exponents are made of the bits of a sum, which are those of the argument where it is no number."""
    bits = [0x7F800001, 0x7FC00006, 0x7FFFFFFF, 0xFF800003, 0xFFC01234, 0xFFFFFFFF]
    x = np.resize(np.array(bits, np.uint32).view(np.float32), 64)
    assert np.isnan(floats(name, x)).all()


@pytest.mark.parametrize(("level", "scales"), [("x86-64-v3", False), ("x86-64-v4", True)])
@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid"])
def test_one_instruction_scales_or_bits_of_a_sum_do(name: str, level: str, scales: bool):
    loop = write_loop(f"ky_{name}", EMITTERS[name], "float", 8, resolve_machine(level), {})
    assert ("scalef" in loop) == scales
    assert ("rint" in loop) == scales
    assert "fptosi" not in loop


def test_every_library_function_that_is_called_can_be_linked():
    machine, used = resolve_machine("x86-64"), dict[str, str]()
    for type_ in ("float", "double"):
        for name, function in EMITTERS.items():
            write_loop(f"ky_{name}", function, type_, 2, machine, used)
    called = {name for name in used if not name.startswith("llvm.")}
    assert called
    assert called <= set(LIBRARY_FUNCTIONS)
    assert set(_native.library_functions()) == set(LIBRARY_FUNCTIONS)
