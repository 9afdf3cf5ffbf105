"""Operators that move elements, and tensors made from nothing. Axes may count from the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.errors import FrontendError
from kernelyard.nn.op.reduction import fields
from kernelyard.nn.tensor import Operand, Tensor, emit, emit_call

__all__ = [
    "arange",
    "broadcast_to",
    "chunk",
    "concat",
    "empty",
    "flatten",
    "flip",
    "full",
    "gather",
    "one_hot",
    "ones",
    "pad",
    "permute",
    "permute_dims",
    "repeat",
    "reshape",
    "split",
    "squeeze",
    "stack",
    "strided_slice",
    "take",
    "tile",
    "tril",
    "triu",
    "unsqueeze",
    "zeros",
]


def reshape(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Return the elements in another shape, one of whose sizes may be -1: what is left."""
    return x.reshape(*shape)


def flatten(x: Tensor, start: int = 0) -> Tensor:
    """Return all axes from `start` on as one."""
    return x.reshape(*x.shape[: start % x.ndim], dims.product(x.shape[start % x.ndim :]))


def permute_dims(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Return the axes in another order, None for the reverse."""
    return x.permute_dims(*(reversed(range(x.ndim)) if axes is None else axes))


permute = permute_dims


def broadcast_to(x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Return x repeated along axes of size 1 and along new leading axes."""
    return emit("broadcast_to", x, shape=tuple(shape))


def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """Return a new axis of size 1."""
    place = axis % (x.ndim + 1)
    return x.reshape(*x.shape[:place], 1, *x.shape[place:])


def squeeze(x: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """Without some axes of size 1, None for all axes that are known to be of that size.

    Raises: FrontendError for an axis of another size.
    """
    given = (axis,) if isinstance(axis, int) else axis
    if given is None:
        given = [place for place, size in enumerate(x.shape) if size == 1]
    places = {place % x.ndim for place in given}
    if any(x.shape[place] != 1 for place in places):
        raise FrontendError("only axes of size 1 can be squeezed", found=f"axes {sorted(places)} of {x}")
    return x.reshape(*(size for place, size in enumerate(x.shape) if place not in places))


def concat(xs: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Concatenate tensors along an axis."""
    return emit("concat", *xs, axis=axis % xs[0].ndim)


def stack(xs: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Stack tensors along a new axis."""
    return concat([unsqueeze(x, axis % (x.ndim + 1)) for x in xs], axis % (xs[0].ndim + 1))


def split(x: Tensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Split a tensor along an axis: into a number of equal pieces, or before each of some indices.

    Raises: FrontendError when equal pieces are not possible, or the size is not known.
    """
    place = axis % x.ndim
    size = x.shape[place]
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        piece = dims.floordiv(size, count) if count > 0 else 0
        if count < 1 or piece * count != size:
            raise FrontendError("an axis cannot be split equally", found=f"{size} into {count}")
        sections: tuple[Dim, ...] = (piece,) * count
    else:
        cuts = [0, *indices_or_sections, size]
        sections = tuple(after - before for before, after in pairwise(cuts))
    return fields(emit_call("split", x, axis=place, sections=sections))


def chunk(x: Tensor, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
    """Split along an axis into a number of equal pieces."""
    return split(x, chunks, axis)


def take(x: Tensor, indices: Operand, axis: int | None = None) -> Tensor:
    """Take slices of x along an axis (None: of the flattened x), one for each index."""
    if axis is None:
        return emit("take", x.reshape(-1), indices, axis=0)
    return emit("take", x, indices, axis=axis % x.ndim)


def gather(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """Return the element of x at each index along an axis, at the index's own place along the others."""
    return emit("gather_elements", x, indices, axis=axis % x.ndim)


def flip(x: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Return the elements in reverse order along some axes."""
    return emit("flip", x, axes=tuple(each % x.ndim for each in ((axis,) if isinstance(axis, int) else axis)))


def one_hot(indices: Tensor, depth: int, dtype: str = "float32") -> Tensor:
    """Return 1 at each index along a new last axis of size `depth`, 0 elsewhere."""
    return emit("one_hot", indices, depth=depth, dtype=dtype)


def strided_slice(
    x: Tensor, axes: Sequence[int], begin: Sequence[Dim], end: Sequence[Dim], strides: Sequence[int] | None = None
) -> Tensor:
    """Return x from `begin` to before `end` along some axes, within each; every element unless `strides` says else."""
    places = tuple(axis % x.ndim for axis in axes)
    steps = tuple(strides) if strides is not None else (1,) * len(places)
    return emit("strided_slice", x, axes=places, begin=tuple(begin), end=tuple(end), strides=steps)


def repeat(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Repeat each element `repeats` times along an axis (None: of the flattened x)."""
    if axis is None:
        return repeat(x.reshape(-1), repeats, 0)
    place = axis % x.ndim
    before, size, after = x.shape[:place], x.shape[place], x.shape[place + 1 :]
    spread = broadcast_to(x.reshape(*before, size, 1, *after), (*before, size, repeats, *after))
    return spread.reshape(*before, size * repeats, *after)


def tile(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Return x as a whole several times along each axis."""
    return emit("tile", x, repeats=tuple(repeats))


def pad(x: Tensor, widths: Sequence[tuple[Dim, Dim]], mode: str = "constant", value: float = 0.0) -> Tensor:
    """Return x with that much (before, after) added along each axis. mode: constant, reflect, edge or wrap."""
    pads = (*(before for before, _ in widths), *(after for _, after in widths))
    return emit("pad", x, pads=pads, mode=mode, value=value)


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Set everything below a diagonal of matrices to 0."""
    return emit("trilu", x, k=diagonal, upper=True)


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Set everything above a diagonal of matrices to 0."""
    return emit("trilu", x, k=diagonal, upper=False)


def full(shape: Sequence[Dim], value: float | int | bool, dtype: str = "float32") -> Tensor:
    """Return a tensor of one number."""
    return emit("broadcast_to", np.asarray(value, dtypes.to_numpy(dtype)), shape=tuple(shape))


def zeros(shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Return a tensor of zeros."""
    return full(shape, 0, dtype)


def empty(shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Return a tensor whose numbers nobody reads. They are zeros: a function gives the same results every time."""
    return zeros(shape, dtype)


def ones(shape: Sequence[Dim], dtype: str = "float32") -> Tensor:
    """Return a tensor of ones."""
    return full(shape, 1, dtype)


def arange(start: Dim, end: Dim | None = None, step: int = 1, dtype: str = "int64") -> Tensor:
    """Return start, start + step, ... up to before `end`; with one argument from 0 up to it."""
    if step == 0:
        raise FrontendError("the step is zero")
    first, last = (0, start) if end is None else (start, end)
    count = dims.ceildiv(last - first, step) if step > 0 else dims.ceildiv(first - last, -step)
    return emit("arange", start=first, step=step, count=dims.maximum(count, 0), dtype=dtype)
