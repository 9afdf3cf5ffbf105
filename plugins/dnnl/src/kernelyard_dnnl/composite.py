"""How a matched group reads: an anchor (the operator that names the primitive) and the stages applied to its result.

Checks read a match with it, codegen a composite function: one reading for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard.dims import Shape
from kernelyard.ir import Binding, Call, Expr, Op
from kernelyard_dnnl.post_ops import Binary, Stage, is_per_channel, stages_of

CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
DECONVOLUTIONS = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")

# What may stand before an anchor and becomes part of how it reads its operands.
READERS = {**dict.fromkeys(CONVOLUTIONS, "pad"), "matmul": "permute_dims"}


@dataclass(frozen=True)
class Composite:
    """An anchor call, its bias if the first stage was one, and the remaining stages in order.

    operands: of the anchor, as they are before what is in `readers`. readers: by operand number, the `pad` or the
    transposition that the anchor's primitive does itself while reading.
    """

    anchor: Call
    operands: tuple[Expr, ...]
    readers: dict[int, Call]
    bias: Expr | None
    stages: tuple[Stage, ...]
    calls: tuple[Call, ...]

    @property
    def following(self) -> tuple[Call, ...]:
        """The calls after the anchor."""
        return self.calls[self.calls.index(self.anchor) + 1 :]


def read_composite(bindings: Sequence[Binding]) -> Composite:
    """Read a group: reader* anchor stage*, each stage applied to the binding before it."""
    bound = [(binding.var, binding.value) for binding in bindings if isinstance(binding.value, Call)]
    calls = tuple(call for _, call in bound)
    place = next(i for i in range(len(calls)) if _is_anchor(calls, i))
    anchor = calls[place]
    made: dict[Expr, Call] = dict(bound[:place])
    readers = {number: made[arg] for number, arg in enumerate(anchor.args) if arg in made}
    operands = tuple(made[arg].args[0] if arg in made else arg for arg in anchor.args)
    stages = [stage for i, call in enumerate(calls[place + 1 :], place) for stage in stages_of(call, bound[i][0])]
    bias = None
    if stages and _is_bias(anchor, stages[0]):
        first = stages.pop(0)
        assert isinstance(first, Binary)
        bias = first.operand
    return Composite(anchor, operands, readers, bias, tuple(stages), calls)


def _is_anchor(calls: Sequence[Call], place: int) -> bool:
    later = {READERS.get(call.op_name) for call in calls[place + 1 :]}
    return calls[place].op_name not in later


def _is_bias(anchor: Call, stage: Stage) -> bool:
    if not isinstance(stage, Binary) or stage.algorithm != "add" or not isinstance(anchor.op, Op):
        return False
    out, bias = anchor.tensor_type.shape, stage.operand.tensor_type.shape
    if anchor.op.name in (*CONVOLUTIONS, *DECONVOLUTIONS):
        return is_per_channel(bias, out[1], 1, len(out))
    return anchor.op.name == "matmul" and _is_bias_of_matmul(anchor, bias, out)


def _is_bias_of_matmul(matmul: Call, bias: Shape, out: Shape) -> bool:
    """One value per column. A product with a vector on the right has no columns."""
    has_columns = matmul.args[1].tensor_type.rank > 1
    return has_columns and bool(out) and is_per_channel(bias, out[-1], len(out) - 1, len(out))
