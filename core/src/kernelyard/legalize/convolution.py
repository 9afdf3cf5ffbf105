"""Rules of convolution and transposed convolution over one, two or three spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.legalize.common import Source
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.legalize.shape import padded
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Expr, const, equal, index, select

Ints = tuple[int, ...]


def pad_spatial(b: RuleBuilder, x: Source, begins: Sequence[Dim], ends: Sequence[Dim], value: float | int) -> Source:
    """`x` (N, C, spatial...) with its spatial axes padded, so that loops need no bounds; itself without padding."""
    if all(size == 0 for size in (*begins, *ends)):
        return x
    return padded(b, x, (0, 0, *begins), (0, 0, *ends), "constant", value)


def _channel(filter_: Expr, filters: Dim, groups: int, per_group: Dim, k: Expr) -> Expr:
    """The input channel that step `k` of an output channel reads."""
    return (filter_ // index(dims.floordiv(filters, groups))) * per_group + k if groups > 1 else k


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
        return whole[(n, _channel(f, filters, groups, per_group, c), *places)] * weight[(f, c, *taps)]

    return b.reduce("sum", b.result.shape, (per_group, *kernel), body, name="conv")


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
    """Each output element gathers the inputs that reach it; those that lie between two inputs reach nothing."""
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
