"""Rules of convolution and transposed convolution over one, two or three spatial axes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.legalize.common import Source
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.legalize.shape import pad_tensor
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Expr, const, equal, index, select

Ints = tuple[int, ...]


def pad_spatial(b: RuleBuilder, x: Source, begins: Sequence[Dim], ends: Sequence[Dim], value: float | int) -> Source:
    """Pad the spatial axes of `x` (N, C, spatial...), so that loops need no bounds checks."""
    if all(size == 0 for size in (*begins, *ends)):
        return x
    return pad_tensor(b, x, (0, 0, *begins), (0, 0, *ends), "constant", value)


@legalize("nn.conv1d", "nn.conv2d", "nn.conv3d", widen=True)
def conv(
    b: RuleBuilder, x: Operand, weight: Operand, *, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> Buffer:
    rank = x.rank - 2
    whole = pad_spatial(b, x, padding[:rank], padding[rank:], 0)
    filters, per_group, *kernel = weight.shape

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> Expr:
        (n, f, *out), (c, *taps) = at, point
        places = (o * s + t * d for o, s, t, d in zip(out, strides, taps, dilation, strict=True))
        channel = (f // index(dims.floordiv(filters, groups))) * per_group + c if groups > 1 else c
        return whole[(n, channel, *places)] * weight[(f, c, *taps)]

    return b.reduce("sum", b.result.shape, (per_group, *kernel), body, name="conv")


@dataclass(frozen=True)
class _Phase:
    """Elements `stride * q + offset` of an output axis, for q below `count`. Step u of the reduction takes the
    weight's tap `tap + u * next_tap` and the input's element `q + place + u * next_place`."""

    offset: int
    count: Dim
    steps: int
    tap: int = 0
    next_tap: int = 0
    place: int = 0
    next_place: int = 0

    @property
    def places(self) -> tuple[int, int]:
        """The lowest and the highest place relative to q."""
        last = self.place + (self.steps - 1) * self.next_place
        return min(self.place, last), max(self.place, last)


def _phases(size: Dim, kernel: int, stride: int, begin: int, dilation: int) -> list[_Phase]:
    """Return an output axis by the remainders of its index: elements of one remainder are reached by the same taps."""
    phases: list[_Phase] = []
    for offset in range(stride):
        count = dims.ceildiv(size - offset, stride)
        taps = [t for t in range(kernel) if (offset + begin - t * dilation) % stride == 0]
        places = [(offset + begin - t * dilation) // stride for t in taps]
        if not taps:
            phases.append(_Phase(offset, count, 0))
            continue
        next_tap, next_place = (taps[1] - taps[0], places[1] - places[0]) if len(taps) > 1 else (0, 0)
        phases.append(_Phase(offset, count, len(taps), taps[0], next_tap, places[0], next_place))
    return phases


def _overhang(phases: Sequence[_Phase], size: Dim) -> tuple[int, Dim]:
    """Return the padding of an output axis before and after the `size` elements of the input's axis."""
    reading = [phase for phase in phases if phase.steps]
    before = max([0, *(-phase.places[0] for phase in reading)])
    return before, reduce(dims.maximum, (phase.count + phase.places[1] - size for phase in reading), 0)


@legalize("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose", widen=True)
def conv_transpose(
    b: RuleBuilder,
    x: Operand,
    weight: Operand,
    *,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    output_padding: Ints,
) -> Buffer:
    """Return one convolution without gaps per remainder of the output's index by the strides, so that every product
    counts.
    """
    kernel = [size for size in weight.shape[2:] if isinstance(size, int)]
    if len(kernel) < weight.rank - 2:
        return _gather_transposed(b, x, weight, strides, padding, dilation, groups)
    sizes, begins_of_output = b.result.shape[2:], padding[: len(kernel)]
    axes = [
        _phases(size, taps, stride, begin, spread)
        for size, taps, stride, begin, spread in zip(sizes, kernel, strides, begins_of_output, dilation, strict=True)
    ]
    overhangs = [_overhang(phases, size) for phases, size in zip(axes, x.shape[2:], strict=True)]
    begins = [before for before, _ in overhangs]
    whole = pad_spatial(b, x, begins, [behind for _, behind in overhangs], 0)
    if all(len(phases) == 1 for phases in axes):
        return _phase_of_transpose(b, whole, weight, [phase for (phase,) in axes], begins, groups)
    result = b.buffer(b.result.shape, x.dtype, "conv")
    for phases in itertools.product(*axes):
        part = _phase_of_transpose(b, whole, weight, phases, begins, groups)

        def where(*at: Axis, phases: tuple[_Phase, ...] = phases) -> list[Expr]:
            spread = [q * s + phase.offset for q, s, phase in zip(at[2:], strides, phases, strict=True)]
            return [*at[:2], *spread]

        b.store(result, part.shape, where, lambda *at, part=part: part[at])
    return result


def _phase_of_transpose(
    b: RuleBuilder, x: Source, weight: Operand, phases: Sequence[_Phase], begins: Sequence[int], groups: int
) -> Buffer:
    """Return the output elements of one remainder per axis."""
    channels, per_group = weight.shape[:2]
    from_group = dims.floordiv(channels, groups)
    shape = (*b.result.shape[:2], *(phase.count for phase in phases))

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> Expr:
        (n, f, *out), (c, *steps) = at, point
        channel = (f // index(per_group)) * from_group + c if groups > 1 else c
        filter_ = f % index(per_group) if groups > 1 else f
        moves = list(zip(out, steps, phases, begins, strict=True))
        places = [q + u * phase.next_place + (phase.place + begin) for q, u, phase, begin in moves]
        taps = [u * phase.next_tap + phase.tap for _, u, phase, _ in moves]
        return x[(n, channel, *places)] * weight[(channel, filter_, *taps)]

    return b.reduce("sum", shape, (from_group, *(phase.steps for phase in phases)), body, name="phase")


def _gather_transposed(
    b: RuleBuilder, x: Operand, weight: Operand, strides: Ints, padding: Ints, dilation: Ints, groups: int
) -> Buffer:
    """Compute a transposed convolution of unknown kernel size: each output element gathers the taps that reach it."""
    channels, per_group, *kernel = weight.shape
    from_group = dims.floordiv(channels, groups)

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> Expr:
        (n, f, *out), (c, *taps) = at, point
        steps = [o + p - t * d for o, p, t, d in zip(out, padding, taps, dilation, strict=False)]
        channel = (f // index(per_group)) * from_group + c if groups > 1 else c
        element = x[(n, channel, *(step // s for step, s in zip(steps, strides, strict=True)))]
        product = element * weight[(channel, f % index(per_group) if groups > 1 else f, *taps)]
        reached = [_reaches(step, s, size) for step, s, size in zip(steps, strides, x.shape[2:], strict=True)]
        return select(reduce(lambda p, q: p & q, reached), product, const(0, x.dtype))

    return b.reduce("sum", b.result.shape, (from_group, *kernel), body, name="conv")


def _reaches(step: Expr, stride: int, size: Dim) -> Expr:
    inside = (step >= 0) & (step < (index(size) - 1) * stride + 1)
    return inside & equal(step % stride, 0) if stride > 1 else inside
