"""Weight-only quantization: match a dequantization, whatever its operators, and pack the integers.

A dequantization here reads constants alone. It is evaluated: for the stored integers, which gives the weight, and for
ones, which gives the scale of each element where it is a product; whether it is one is seen by multiplying. So one home
serves all forms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from kernelyard.plugins.api import Call, Constant, Decline, Expr, Match, Op, Pattern, is_const, is_op
from kernelyard.runtime.api import LRU
from kernelyard_cutlass.description import DEQUANTIZED, Description, Settings, check_dtypes, describe_epilogue
from kernelyard_cutlass.launches import RUN
from kernelyard_cutlass.matmuls import check_gemm, gemm_choices

MOST_WEIGHTS = 8
LEAST_HALF, MOST_HALF = -8, 7
_WEIGHTS: LRU[object, QuantizedWeight | str] = LRU(MOST_WEIGHTS)

Values = Callable[[Expr], Expr]


def match_dequantized_weight() -> Pattern:
    """Match stored integers, a constant "encoded", times constant scales, in the forms of models and importers."""
    stored = is_const().has_dtype("int8").capture("encoded")
    wide = _upto(stored, 2, "astype", least=1)
    scales = _upto(is_const(), 4, "reshape", "broadcast_to", "astype")
    decomposed = _upto(is_op("multiply")(wide, scales), 2, "reshape", "astype")
    named = is_op("dequantize")(stored, is_const(), is_const())
    return decomposed | _upto(named, 1, "reshape")


def _upto(pattern: Pattern, count: int, *ops: str, least: int = 0) -> Pattern:
    """Return the pattern below `least` to `count` calls of some of the operators."""
    below = [pattern]
    for _ in range(count):
        below.append(is_op(*ops)(below[-1]))
    return reduce(or_, below[least:])


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """Integers (N, K) column by column, and the scales (K / group, N)."""

    stored: np.ndarray
    scales: np.ndarray

    @property
    def bits(self) -> int:
        """4 where all integers fit."""
        fits = self.stored.size and self.stored.min() >= LEAST_HALF and self.stored.max() <= MOST_HALF
        return 4 if fits else 8

    def pack(self) -> np.ndarray:
        """Return the integers as bytes: two in each where they fit, the lower half first."""
        if self.bits == 8:
            return self.stored
        pairs = self.stored.reshape(len(self.stored), -1, 2).view(np.uint8)
        return ((pairs[..., 0] & 15) | (pairs[..., 1] << 4)).view(np.int8)


def describe_decode_matmul(match: Match, settings: Settings) -> Description | Decline:
    """Return a matmul with a weight that is dequantized first."""
    gemm = check_dtypes([match["lhs"], match["rhs"]]) or check_gemm(match)
    if isinstance(gemm, Decline):
        return gemm
    if match["rhs"].tensor_type.rank != 2:
        return Decline("rank", f"the weight has {match['rhs'].tensor_type.rank} axes; a matrix is needed", match["rhs"])
    weight = weight_of(match["rhs"], match["encoded"], match.value_of)
    if isinstance(weight, str):
        return Decline("operand", weight, match["encoded"])
    behind = describe_epilogue(match, match["root"].tensor_type.shape)
    if isinstance(behind, Decline):
        return behind
    if "addend" in behind.roles.values():
        return Decline(
            "bias", "a matrix is added before the activation; the kernel for few rows adds a row vector only"
        )
    choices = gemm_choices(match, gemm, True, behind.epilogue, settings)
    choices = {**choices, "family": "decode", "bits": weight.bits}
    roles = {"lhs": "lhs", "rhs": DEQUANTIZED, "encoded": "encoded", **behind.roles}
    return Description("decode_matmul", roles, {"tune": settings.tune}, choices)


def weight_of(rhs: Expr, encoded: Expr, values: Values) -> QuantizedWeight | str:
    """Return the weight that `rhs` (K, N) dequantizes from the constant `encoded`, or why it is none.

    values: what a variable is bound to.
    """
    key = _key(rhs, values)
    return _WEIGHTS.get_or_make(key, lambda: _match_quantized_weight(rhs, encoded, values))


def _match_quantized_weight(rhs: Expr, encoded: Expr, values: Values) -> QuantizedWeight | str:
    assert isinstance(encoded, Constant)

    def dequantize(stored: np.ndarray) -> np.ndarray:
        return _evaluate(rhs, encoded, stored, values).astype(np.float32).T

    each, weight = dequantize(np.ones_like(encoded.data)), dequantize(encoded.data)
    if weight.shape[1] % RUN:
        return f"the contraction size is {weight.shape[1]}; a multiple of {RUN} is needed"
    with np.errstate(all="ignore"):
        stored = np.where(each == 0, 0, np.rint(weight / each))
    is_product = np.allclose(stored * each, weight, rtol=2**-7, atol=0)
    if not is_product or stored.min(initial=0) < -128 or stored.max(initial=0) > 127:
        return "it is not int8 values times scales: there is a zero point, or scales are too small to tell them apart"
    group = _group(each)
    if group is None:
        return f"fewer than {RUN} contiguous elements share a scale"
    return QuantizedWeight(stored.astype(np.int8), np.ascontiguousarray(each[:, ::group].T))


def _group(each: np.ndarray) -> int | None:
    """Return the most elements of a column that share a scale, all along; None below `RUN`."""
    count = each.shape[1]
    for groups in range(1, count // RUN + 1):
        size = count // groups
        if count % groups or size % RUN:
            continue
        if np.all(each.reshape(len(each), groups, size) == each[:, ::size, None]):
            return size
    return None


def _evaluate(expr: Expr, encoded: Constant, stored: np.ndarray, values: Values) -> np.ndarray:
    value = values(expr)
    if isinstance(value, Constant):
        return stored if value.digest == encoded.digest and value.type == encoded.type else value.data
    assert isinstance(value, Call)
    assert isinstance(value.op, Op)
    assert value.op.reference is not None
    return value.op.reference(*(_evaluate(arg, encoded, stored, values) for arg in value.args), **value.attrs)


def _key(expr: Expr, values: Values) -> object:
    value = values(expr)
    if isinstance(value, Constant):
        return value.digest
    assert isinstance(value, Call)
    return value.op_name, str(dict(value.attrs)), tuple(_key(arg, values) for arg in value.args)
