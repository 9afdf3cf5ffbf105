"""Rules of maximum and average pooling."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.legalize.common import Source
from kernelyard.legalize.convolution import pad_spatial
from kernelyard.legalize.registry import Operand, RuleBuilder, legalize
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Expr, cast, index, maximum, minimum
from kernelyard.tir.primfunc import neutral_element

Ints = tuple[int, ...]


def _window(
    b: RuleBuilder,
    x: Operand,
    reducer: str,
    value: float | int | bool,
    pool_size: Ints,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
) -> Buffer:
    """Return the elements of each window combined; `value` stands for padding."""
    rank, out = x.rank - 2, b.result.shape[2:]
    ends: list[Dim] = list(padding[rank:])
    for n in range(rank if ceil_mode else 0):
        reach = (out[n] - 1) * strides[n] + dilation[n] * (pool_size[n] - 1) + 1
        ends[n] = dims.maximum(ends[n], reach - x.shape[2 + n] - padding[n])
    whole: Source = pad_spatial(b, x, padding[:rank], ends, value)

    def body(at: Sequence[Axis], point: Sequence[Axis]) -> Expr:
        (n, c, *spatial) = at
        return whole[(n, c, *(o * s + t * d for o, s, t, d in zip(spatial, strides, point, dilation, strict=True)))]

    return b.reduce(reducer, b.result.shape, pool_size, body, name="pool")


@legalize("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", widen=True)
def max_pool(
    b: RuleBuilder, x: Operand, *, pool_size: Ints, strides: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
) -> Buffer:
    lowest = neutral_element("max", x.dtype).value
    return _window(b, x, "max", lowest, pool_size, strides, padding, dilation, ceil_mode)


@legalize("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", widen=True)
def avg_pool(
    b: RuleBuilder,
    x: Operand,
    *,
    pool_size: Ints,
    strides: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
) -> Buffer:
    rank = x.rank - 2
    total = _window(b, x, "sum", 0, pool_size, strides, padding, dilation, ceil_mode)
    if not ceil_mode and (count_include_pad or not any(padding)):
        return b.compute(b.result.shape, lambda *at: total[at] / dims.product(pool_size))

    def count(n: int, at: Expr) -> Expr:
        before, after = (padding[n], padding[rank + n]) if count_include_pad else (0, 0)
        start = at * strides[n] - padding[n]
        return _count_taps_inside(start, pool_size[n], dilation[n], -before, x.shape[2 + n] + after)

    def body(*at: Axis) -> Expr:
        number = index(1)
        for n, value in enumerate(at[2:]):
            number = number * count(n, value)
        return total[at] / cast(number, x.dtype)

    return b.compute(b.result.shape, body)


def _count_taps_inside(start: Expr, taps: int, dilation: int, low: int, high: Dim) -> Expr:
    """Count the taps (`start`, `start + dilation`, ..., `taps` of them) in [low, high)."""
    first = maximum((index(low) - start + (dilation - 1)) // dilation, 0)
    end = minimum((index(high) - start + (dilation - 1)) // dilation, taps)
    return end - first
