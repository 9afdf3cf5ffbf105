"""In which order the dims of a value will lie in memory: what checks know of the layouts that the runtime chooses."""

from __future__ import annotations

from kernelyard.ir import Call, Expr, Var
from kernelyard.patterns import Match
from kernelyard_dnnl.composite import CONVOLUTIONS, DECONVOLUTIONS
from kernelyard_dnnl.layout import channels_last_order
from kernelyard_dnnl.nodes import ANCHORS, AVG_POOLS, MAX_POOLS
from kernelyard_dnnl.post_ops import BINARY, UNARY

MAX_STEPS_BACK = 8
CHANNELS_LAST = (*CONVOLUTIONS, *DECONVOLUTIONS, "nn.lrn")
LIKE_FIRST = (
    *MAX_POOLS,
    *AVG_POOLS,
    "image.resize",
    "concat",
    "nn.batch_norm",
    "permute_dims",
    "strided_slice",
    "astype",
)


def expected_order(match: Match, operand: Expr, steps: int = MAX_STEPS_BACK) -> tuple[int, ...] | None:
    """The dims of an operand of a match from the outermost to the innermost in memory; None where that is not clear.

    Convolutions and lrn make channels-last tensors; a transposition renames the dims and leaves the bytes; elementwise
    operators, pools and slices keep the layout of what they read; what others make of row-major memory is row-major.
    What comes from outside oneDNN is row-major, and so are matrix products.
    """
    value, rank = match.value_of(operand), operand.tensor_type.rank
    if not isinstance(value, Call) or value.op_name not in ANCHORS or value.op_name == "matmul":
        return tuple(range(rank))
    if value.op_name in CHANNELS_LAST:
        return channels_last_order(rank)
    if not steps:
        return None
    kept = _kept_layout_of(value)
    read = value.args[0] if kept is None else kept
    order = expected_order(match, read, steps - 1)
    if kept is None:
        return tuple(range(rank)) if order == tuple(range(read.tensor_type.rank)) else None
    if order is not None and value.op_name == "permute_dims":
        axes = value.attrs["axes"]
        return tuple(axes.index(axis) for axis in order)
    return order


def _kept_layout_of(value: Call) -> Expr | None:
    """The operand whose layout the result has."""
    if value.op_name in LIKE_FIRST:
        return value.args[0]
    shape = value.tensor_type.shape
    whole = [arg for arg in value.args if arg.tensor_type.shape == shape]
    # Of two whole operands, the layout that a primitive chose wins over that of an input.
    computed = [arg for arg in whole if isinstance(arg, Var)] or whole
    return computed[0] if value.op_name in (*UNARY, *BINARY) and computed else None
