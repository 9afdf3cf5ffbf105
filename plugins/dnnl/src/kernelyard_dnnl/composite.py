"""Composites: an anchor (the operator that names the primitive) and the post-op stages applied to its result.

Checks read a match with it, codegen a composite function: one reading for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Shape
from kernelyard.plugins.api import Binding, Call, Expr, Op
from kernelyard_dnnl.post_ops import Binary, Stage
from kernelyard_dnnl.primitive_kind import PrimitiveKind
from kernelyard_dnnl.primitives import kinds_by_operator
from kernelyard_dnnl.stages import stages_of


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
    def kind(self) -> PrimitiveKind:
        """The kind of primitive that the anchor names."""
        return kinds_by_operator()[self.anchor.op_name]

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


def kind_of(value: Expr) -> PrimitiveKind | None:
    """Return the kind of primitive that computes a value by itself; None where oneDNN does not."""
    return kinds_by_operator().get(value.op.name) if isinstance(value, Call) and isinstance(value.op, Op) else None


def _is_anchor(calls: Sequence[Call], place: int) -> bool:
    later = [kind_of(call) for call in calls[place + 1 :]]
    return calls[place].op_name not in [kind.reader for kind in later if kind is not None]


def _is_bias(anchor: Call, stage: Stage) -> bool:
    """Return one value per channel, or column of a product. A product with a vector on the right has no columns."""
    kind = kind_of(anchor)
    if not isinstance(stage, Binary) or stage.algorithm != "add" or kind is None or kind.bias_axis is None:
        return False
    out = anchor.tensor_type.shape
    if not out or anchor.args[1].tensor_type.rank < 2:
        return False
    axis = kind.bias_axis % len(out)
    return is_per_channel(stage.operand.tensor_type.shape, out[axis], axis, len(out))


def is_per_channel(shape: Shape, channels: dims.Dim, channel_axis: int, rank: int) -> bool:
    """Return True for a shape that holds one value per channel and broadcasts over everything else."""
    if len(shape) > rank or rank - len(shape) > channel_axis:
        return False
    axis = channel_axis - (rank - len(shape))
    return shape[axis] == channels and all(dim == 1 for i, dim in enumerate(shape) if i != axis)
