"""The code of each unary function of the loop-level IR, by its name."""

from __future__ import annotations

from kernelyard_native_cpu.codegen import elementary, erf_table, trigonometric
from kernelyard_native_cpu.codegen.elementary import Emit

UNARY_FUNCTIONS: dict[str, Emit] = {
    "exp": elementary.exp,
    "expm1": elementary.expm1,
    "log": elementary.log,
    "log1p": elementary.log1p,
    "tanh": elementary.tanh,
    "sigmoid": elementary.sigmoid,
    "erf": erf_table.erf,
    "sqrt": elementary.sqrt,
    "rsqrt": elementary.rsqrt,
    **trigonometric.FUNCTIONS,
}
