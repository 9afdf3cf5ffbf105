"""Errors of the elementary functions that native-cpu inlines, in units of the last place of float32, over all floats.

    python benchmarks/math_errors.py --stride 61

prints the table of plugins/native-cpu/README.md: every 61st of the 2**32 floats, subnormals, infinities and NaNs among
them, against float64. The tests hold the same functions to the same bounds on fewer floats.
"""

from __future__ import annotations

import argparse
import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelyard.runtime.api import Code
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.module import module_text
from kernelyard_llvm.values import Value, registers
from kernelyard_native_cpu import _native
from kernelyard_native_cpu.codegen import elementary
from kernelyard_native_cpu.codegen.unary_functions import UNARY_FUNCTIONS
from kernelyard_native_cpu.machine import Machine, resolve_machine

# name: (float64 reference, most units of the last place that float32 results may be off)
CASES: dict[str, tuple[Callable[..., Any], float]] = {
    "exp": (np.exp, 1.1),
    "expm1": (np.expm1, 2.0),
    "log": (np.log, 1.5),
    "log1p": (np.log1p, 1.0),
    "tanh": (np.tanh, 2.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3.0),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), 2.0),
    "sqrt": (np.sqrt, 0.51),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
    **{name: (getattr(np, name), 1.0) for name in ("sin", "cos", "tan", "sinh", "cosh")},
    **{name: (getattr(np, f"arc{name[1:]}"), 1.0) for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "pow": (np.power, 1.0),
}
EMITTERS: dict[str, Callable[..., Value]] = {**UNARY_FUNCTIONS, "pow": elementary.power}
BLOCK = 1 << 20


@dataclass(frozen=True)
class MathLibrary:
    """Every function of `EMITTERS` as a loop over arrays, for one machine and one float type."""

    linked: Code
    machine: Machine

    def __call__(self, name: str, *operands: np.ndarray) -> np.ndarray:
        """The function of arrays whose lengths are a multiple of 64."""
        assert all(len(x) % 64 == 0 for x in operands)
        pointers = [ctypes.c_void_p] * (len(operands) + 1)
        call = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64)(self.linked.addresses[f"ky_{name}"])
        result = np.empty_like(operands[0])
        call(*(x.ctypes.data for x in operands), result.ctypes.data, len(result))
        return result


def write_loop(
    name: str, function: Callable[..., Value], type_: str, lanes: int, machine: Machine, used: dict[str, str]
) -> str:
    """LLVM text that maps one array, or two for `pow`, to another, so many lanes at a time."""
    sources = registers("ptr", "x", "z") if name == "ky_pow" else registers("ptr", "x")
    result, end = Value("%y", "ptr"), Value("%n", "i64")
    e = FunctionEmitter((*sources, result, end), used, machine.has_fma, machine.has_scale)

    with e.loop(0, end, step=lanes) as (i, _):
        values = [e.load(e.element(source, i, type_), lanes, type_=type_) for source in sources]
        e.store(function(e, *values), e.element(result, i, type_))
    return e.finish(name)


def compile_functions(mcpu: str | None, type_: str) -> MathLibrary:
    """The functions on "float" or "double", in vectors as wide as the machine's."""
    machine, used = resolve_machine(mcpu), dict[str, str]()
    lanes = machine.vector_bits // (32 if type_ == "float" else 64)
    texts = [write_loop(f"ky_{name}", function, type_, lanes, machine, used) for name, function in EMITTERS.items()]
    text = module_text([f'target triple = "{_native.triple(machine)}"', *texts], used, machine.vector_bits)
    symbols = [f"ky_{name}" for name in EMITTERS]
    return MathLibrary(_native.link_objects([_native.compile_object(text, machine)], symbols), machine)


def all_floats(stride: int) -> Iterator[np.ndarray]:
    """Every `stride`th float32 by its bits, in blocks."""
    for start in range(0, 1 << 32, stride * BLOCK):
        bits = np.arange(start, min(start + stride * BLOCK, 1 << 32), stride, dtype=np.uint64).astype(np.uint32)
        yield np.concatenate([bits, np.zeros(-len(bits) % 64, np.uint32)]).view(np.float32)


def operands_of(name: str, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The operands to try a function on: for `pow`, also exponents, most of which give numbers in range."""
    if name != "pow":
        return (x,)
    rng = np.random.default_rng(int(x.view(np.uint32)[0]) + 1)
    with np.errstate(all="ignore"):
        y = (rng.uniform(-110, 95, len(x)) / np.log(np.abs(x.astype(np.float64)))).astype(np.float32)
    y = np.where(x < 0, np.rint(y), y)  # elsewhere the result is NaN
    return x, np.where(rng.random(len(x)) < 0.05, rng.permutation(x), y).astype(np.float32)


def errors(name: str, operands: tuple[np.ndarray, ...], found: np.ndarray) -> np.ndarray:
    """How far each result is off, in units of the last place of the right one; infinite where one of the two is no
    number, or infinite, and the other is not the same."""
    with np.errstate(all="ignore"):
        exact = np.asarray(CASES[name][0](*(x.astype(np.float64) for x in operands)))
        right = exact.astype(np.float32)
        units = np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(right)).astype(np.float64)
    same = (found == right) | (np.isnan(found) & np.isnan(right))
    return np.where(np.isfinite(right) & np.isfinite(found), units, np.where(same, 0.0, np.inf))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=61)
    stride = parser.parse_args().stride
    library = compile_functions(None, "float")
    worst = dict.fromkeys(CASES, 0.0)
    for x in all_floats(stride):
        for name in CASES:
            operands = operands_of(name, x)
            worst[name] = max(worst[name], float(errors(name, operands, library(name, *operands)).max()))
    print("| function | at most | measured |\n|---|---|---|")
    for name, (_, bound) in CASES.items():
        print(f"| `{name}` | {bound} | {worst[name]:.2f} |")


if __name__ == "__main__":
    main()
