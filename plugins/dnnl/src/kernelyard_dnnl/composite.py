"""How a matched group reads: an anchor (the operator that names the primitive) and the stages applied to its result.

Checks read a match with it, codegen a composite function: one reading for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard.ir import Binding, Call, Expr, Op
from kernelyard_dnnl.post_ops import Binary, Stage, is_per_channel, stage_of

CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
DECONVOLUTIONS = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")


@dataclass(frozen=True)
class Composite:
    """An anchor call, its bias if the first stage was one, and the remaining stages in order.

    padding: the `pad` of the anchor's data, where one stands before a convolution.
    """

    anchor: Call
    bias: Expr | None
    stages: tuple[Stage, ...]
    calls: tuple[Call, ...]
    padding: Call | None = None


def read_composite(bindings: Sequence[Binding]) -> Composite:
    """Read a group: [pad] anchor stage*, each applied to the binding before it."""
    calls = [binding.value for binding in bindings if isinstance(binding.value, Call)]
    first_anchor = 1 if calls[0].op_name == "pad" else 0
    anchor = calls[first_anchor]
    stages = [stage_of(call, bindings[i].var) for i, call in enumerate(calls[first_anchor + 1 :], first_anchor)]
    bias = None
    if stages and _is_bias(anchor, stages[0]):
        first = stages.pop(0)
        assert isinstance(first, Binary)
        bias = first.operand
    padding = calls[0] if first_anchor else None
    return Composite(anchor, bias, tuple(stages), tuple(calls), padding)


def _is_bias(anchor: Call, stage: Stage) -> bool:
    if not isinstance(stage, Binary) or stage.algorithm != "add" or not isinstance(anchor.op, Op):
        return False
    out = anchor.tensor_type.shape
    if anchor.op.name in (*CONVOLUTIONS, *DECONVOLUTIONS):
        return is_per_channel(stage.operand.tensor_type.shape, out[1], 1, len(out))
    return (
        anchor.op.name == "matmul"
        and len(out) > 1
        and is_per_channel(stage.operand.tensor_type.shape, out[-1], len(out) - 1, len(out))
    )
