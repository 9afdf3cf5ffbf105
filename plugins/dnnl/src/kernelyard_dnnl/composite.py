"""Composites: an anchor (the operator that names the primitive) and the post-op stages applied to its result.

Checks read a match with it, codegen a composite function: one reading for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Shape
from kernelyard.plugins.api import Binding, Call, Expr, Match, Op
from kernelyard_dnnl.post_ops import Binary, Stage
from kernelyard_dnnl.primitive_kind import PrimitiveKind
from kernelyard_dnnl.primitives import kinds_by_operator
from kernelyard_dnnl.stages import simulate_quantization, stages_of

DECODER, ENCODER = "dequantize", "quantize"
COMPOSITE, OWN = "Composite", "dnnl."  # the attribute of a composite that has its pattern's name


@dataclass(frozen=True)
class Composite:
    """An anchor call, its bias if the first stage was one, and the remaining stages in order.

    operands: of the anchor, as they are before what is in `readers` and `decoders`. readers: by operand number, the
    `pad` or the transposition that the anchor's primitive does itself while reading. decoders: by operand number, the
    dequantize by which the primitive reads what is stored. encoder: the quantize by which it stores its result.
    """

    anchor: Call
    operands: tuple[Expr, ...]
    readers: dict[int, Call]
    decoders: dict[int, Call]
    bias: Expr | None
    stages: tuple[Stage, ...]
    encoder: Call | None
    calls: tuple[Call, ...]

    @property
    def kind(self) -> PrimitiveKind:
        """The kind of primitive that the anchor names."""
        return kinds_by_operator()[self.anchor.op_name]

    @property
    def following(self) -> tuple[Call, ...]:
        """The calls after the anchor that compute its result."""
        after = self.calls[self.calls.index(self.anchor) + 1 :]
        return tuple(call for call in after if call.op_name != DECODER)

    @property
    def is_of_integers(self) -> bool:
        """True where the primitive reads or stores quantized values on the way."""
        return bool(self.decoders) or self.encoder is not None


def read_composite(bindings: Sequence[Binding]) -> Composite:
    """Read a group: reader* anchor stage*, each stage applied to the binding before it."""
    bound: dict[Expr, Call] = {binding.var: binding.value for binding in bindings if isinstance(binding.value, Call)}
    calls = tuple(bound.values())
    anchor = _anchor(calls)
    place = calls.index(anchor)
    inside = {name: call for name, call in bound.items() if call is not anchor}
    read = [_read(arg, inside) for arg in anchor.args]
    stages = _stages(list(bound.items())[place:], inside)
    bias = None
    if stages and _is_bias(anchor, stages[0]):
        first = stages.pop(0)
        assert isinstance(first, Binary)
        bias = first.operand
    return Composite(
        anchor,
        tuple(operand for operand, _, _ in read),
        _present(reader for _, reader, _ in read),
        _present(decoder for _, _, decoder in read),
        bias,
        tuple(stages),
        calls[-1] if calls[-1].op_name == ENCODER and calls[-1] is not anchor else None,
        calls,
    )


def _stages(bound: Sequence[tuple[Expr, Call]], inside: Mapping[Expr, Call]) -> list[Stage]:
    """Return what is done with the first of these values."""
    previous, encoder = bound[0]
    stages: list[Stage] = []
    for name, call in bound[1:]:
        if call.op_name == DECODER and call.args[0] is not previous:
            continue  # of another operand
        if call.op_name == ENCODER:
            encoder = call
        elif call.op_name == DECODER:
            stages += simulate_quantization(encoder, call)
        else:
            stages += [_absorb_decoder(stage, inside) for stage in stages_of(call, previous)]
        previous = name
    return stages


def _present(calls: Iterable[Call | None]) -> dict[int, Call]:
    return {number: call for number, call in enumerate(calls) if call is not None}


def _read(arg: Expr, before: Mapping[Expr, Call]) -> tuple[Expr, Call | None, Call | None]:
    """Return an operand as it is stored, and by what the primitive reads it: another reader, a dequantize."""
    reader = before.get(arg)
    if reader is not None and reader.op_name != DECODER:
        arg = reader.args[0]
    else:
        reader = None
    decoder = before.get(arg)
    return (arg if decoder is None else decoder.args[0]), reader, decoder


def _absorb_decoder(stage: Stage, before: Mapping[Expr, Call]) -> Stage:
    """Return a stage with its operand as it is stored, and the decoder that reads it."""
    decoder = before.get(stage.operand) if isinstance(stage, Binary) else None
    if decoder is None or decoder.op_name != DECODER:
        return stage
    assert isinstance(stage, Binary)
    return Binary(stage.algorithm, decoder.args[0], decoder)


def kind_of(value: Expr) -> PrimitiveKind | None:
    """Return the kind of primitive that computes a value by itself; None where oneDNN does not."""
    if not isinstance(value, Call) or not isinstance(value.op, Op):
        return None
    kind = kinds_by_operator().get(value.op.name)
    return kind if kind is not None and kind.computes(value) else None


def kind_that_made(value: Expr, match: Match) -> PrimitiveKind | None:
    """Return the kind of primitive that computes a value by itself, or as a composite that was lifted before."""
    composite = match.callee(value)
    if composite is None:
        return kind_of(value)
    is_ours = str(composite.attrs.get(COMPOSITE, "")).startswith(OWN)
    calls = [binding.value for binding in composite.bindings if isinstance(binding.value, Call)]
    return kind_of(_anchor(calls)) if is_ours and calls else None


def _anchor(calls: Sequence[Call]) -> Call:
    return next(call for place, call in enumerate(calls) if _is_anchor(calls, place))


def _is_anchor(calls: Sequence[Call], place: int) -> bool:
    name, later = calls[place].op_name, [call for call in calls[place + 1 :] if call.op_name != DECODER]
    if name == DECODER:
        return not later
    return name not in [kind.reader for kind in map(kind_of, later) if kind is not None]


def _is_bias(anchor: Call, stage: Stage) -> bool:
    """Return one value per channel, or column of a product. A product with a vector on the right has no columns."""
    kind = kind_of(anchor)
    if not isinstance(stage, Binary) or stage.algorithm != "add" or kind is None or kind.bias_axis is None:
        return False
    if stage.decoder is not None:
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
