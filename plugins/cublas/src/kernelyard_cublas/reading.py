"""Structure of a match: the matmul's operands as they are stored, and its epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelyard import dtypes
from kernelyard.dims import Shape
from kernelyard.plugins.api import Call, Constant, Expr, Match
from kernelyard_cublas.type_table import FP8

ACTIVATIONS = {"nn.relu": "relu", "nn.gelu": "gelu", "nn.gelu_tanh": "gelu"}


@dataclass(frozen=True)
class Operand:
    """An operand below the casts and transpositions that the library does while it reads.

    dtype: as it is to be given to the library; a constant may be stored in a wider type than its values need.
    """

    expr: Expr
    dtype: str
    transposed: bool

    @property
    def shape(self) -> Shape:
        """As it is stored."""
        return self.expr.tensor_type.shape


@dataclass(frozen=True)
class Reading:
    """A matmul and what follows it.

    left, right: shapes of what is multiplied. dtype: of the result. pack_rhs: the right operand is a constant, which
    is to be stored with its last two axes exchanged.
    """

    lhs: Operand
    rhs: Operand
    left: Shape
    right: Shape
    dtype: str
    activation: str = "none"
    pack_rhs: bool = False

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the composite, for codegen."""
        return {
            "transpose_lhs": self.lhs.transposed,
            "transpose_rhs": self.rhs.transposed or self.pack_rhs,
            "activation": self.activation,
            "pack_rhs": self.pack_rhs,
            "rhs_dtype": self.rhs.dtype,
        }


def read_match(match: Match) -> Reading:
    """Return the reading of a match of one of our patterns."""
    root = match.call_of("root")
    lhs, rhs = (_skip_views(match, each) for each in root.args)
    activation = match.get("activation")
    name = ACTIVATIONS[match.call_of("activation").op_name] if activation is not None else "none"
    return _reading(lhs, rhs, root, match.root.tensor_type.dtype, name)


def read_call(call: Call) -> Reading:
    """Return the reading of a matmul by itself."""
    lhs, rhs = (Operand(each, each.tensor_type.dtype, False) for each in call.args)
    return _reading(lhs, rhs, call, call.tensor_type.dtype)


def _skip_views(match: Match, operand: Expr) -> Operand:
    transposed = False
    while operand in match.members:
        call = match.value_of(operand)
        assert isinstance(call, Call)
        transposed |= call.op_name == "permute_dims"
        operand = call.args[0]
    return Operand(operand, operand.tensor_type.dtype, transposed)


def _reading(lhs: Operand, rhs: Operand, root: Call, dtype: str, activation: str = "none") -> Reading:
    rhs = _narrow(rhs, lhs.dtype)
    is_constant = isinstance(rhs.expr, Constant)
    # Matmuls of 8 bits are fastest, and of float8 possible, where both operands lie along the contraction axis.
    packs = is_constant and not rhs.transposed and rhs.dtype in ("int8", FP8) and len(rhs.shape) >= 2
    left, right = (arg.tensor_type.shape for arg in root.args)
    return Reading(lhs, rhs, left, right, dtype, activation, packs)


def _narrow(rhs: Operand, dtype: str) -> Operand:
    """Return a constant that was widened to be multiplied, and folded, as narrow as the other side, if nothing is
    lost."""
    if not isinstance(rhs.expr, Constant) or dtypes.itemsize(dtype) >= dtypes.itemsize(rhs.dtype):
        return rhs
    array = rhs.expr.data
    with np.errstate(all="ignore"):
        narrow = array.astype(dtypes.to_numpy(dtype))
    return Operand(rhs.expr, dtype, rhs.transposed) if np.array_equal(narrow.astype(array.dtype), array) else rhs
