"""Sliding windows: attributes, output sizes and taps that convolution and pooling share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir.op import Attribute, Attributes
from kernelyard.ops.type_rules import assume_nonnegative, is_nonnegative, require, require_length

Ints = tuple[int, ...]


def window_attributes(rank: int) -> dict[str, Attribute]:
    """Declare strides, padding (all begins, then all ends) and dilation for `rank` spatial axes."""
    return {
        "strides": Attribute("ints", (1,) * rank),
        "padding": Attribute("ints", (0,) * (2 * rank)),
        "dilation": Attribute("ints", (1,) * rank),
    }


def check_window(attrs: Attributes, rank: int) -> None:
    """Check lengths and signs of the window attributes."""
    for name, length in (("strides", rank), ("padding", 2 * rank), ("dilation", rank)):
        require_length(attrs[name], length, name)
    require(all(stride >= 1 for stride in attrs["strides"]), "a stride is not positive", found=attrs["strides"])
    require(all(step >= 1 for step in attrs["dilation"]), "a dilation is not positive", found=attrs["dilation"])
    require(all(pad >= 0 for pad in attrs["padding"]), "a padding is negative", found=attrs["padding"])


def window_sizes(
    spatial: Sequence[Dim], kernel: Sequence[Dim], attrs: Attributes, ceil_mode: bool = False
) -> tuple[Dim, ...]:
    """Return the number of window positions along each spatial axis.

    With `ceil_mode` the last window may reach beyond the padded input, but must start inside it or its front padding.
    """
    rank = len(spatial)
    sizes: list[Dim] = []
    for i, (size, taps) in enumerate(zip(spatial, kernel, strict=True)):
        stride, step = attrs["strides"][i], attrs["dilation"][i]
        front, back = attrs["padding"][i], attrs["padding"][rank + i]
        room = size + front + back - (step * (taps - 1) + 1)
        if isinstance(room, int):
            what = f"the window is larger than the padded input along spatial axis {i}"
            beyond = stride - 1 if ceil_mode else 0
            reach, most = step * (taps - 1) + 1, size + front + back + beyond
            require(room + beyond >= 0, what, found=f"window of {reach}", expected=f"at most {most}")
        if not ceil_mode:
            if stride > 1:  # with a stride of 1, the size tells that there is no position
                assume_nonnegative(room)
            sizes.append(dims.floordiv(room, stride) + 1)
            continue
        covering = dims.ceildiv(room, stride) + 1
        # A window that starts in the back padding is dropped; it cannot where the window outreaches padding and stride.
        starts_inside = is_nonnegative(step * (taps - 1) - (back + stride - 1))
        sizes.append(covering if starts_inside else dims.minimum(covering, dims.ceildiv(size + front, stride)))
    return tuple(sizes)


def pad_spatial(x: np.ndarray, padding: Ints, value: float | int, extra: Ints | None = None) -> np.ndarray:
    """Return x (N, C, spatial...) with padding around the spatial axes, and `extra` more behind them."""
    rank = x.ndim - 2
    behind = extra or (0,) * rank
    width = [(0, 0), (0, 0), *((padding[i], padding[rank + i] + behind[i]) for i in range(rank))]
    return np.pad(x, width, constant_values=value) if any(map(any, width)) else x


def taps(x: np.ndarray, kernel: Ints, out: Ints, strides: Ints, dilation: Ints) -> Iterator[tuple[Ints, np.ndarray]]:
    """Yield for each kernel position the elements of padded x (N, C, spatial...) under it, shape (N, C, out...)."""
    for position in itertools.product(*map(range, kernel)):
        starts = [p * step for p, step in zip(position, dilation, strict=True)]
        index = [slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, out, strides, strict=True)]
        yield position, x[(slice(None), slice(None), *index)]
