"""Operators that move, join and repeat data without computing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten._reshape_alias.default")
@converter("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default", "aten.unsqueeze.default")
@converter("aten.flatten.using_ints", "aten.unflatten.int", "prims.view_of.default")
def reshape(node: Node, x: Expr, *_: object) -> Expr:
    return node.reshape(x, node.result.shape)


@converter("aten.permute.default")
def permute(node: Node, x: Expr, axes: Sequence[int]) -> Expr:
    return node.permute(x, [node.axis(axis, node.rank(x)) for axis in axes])


@converter("aten.transpose.int")
def transpose(node: Node, x: Expr, first: int, second: int) -> Expr:
    order = list(range(node.rank(x)))
    if order:
        a, b = node.axis(first, len(order)), node.axis(second, len(order))
        order[a], order[b] = order[b], order[a]
    return node.permute(x, order)


@converter("aten.t.default")
def matrix_transpose(node: Node, x: Expr) -> Expr:
    return node.permute(x, list(range(node.rank(x)))[::-1])


@converter("aten.expand.default")
def expand(node: Node, x: Expr, *_: object) -> Expr:
    return node.broadcast_to(x, node.result.shape)


@converter("aten.repeat.default")
def repeat(node: Node, x: Expr, repeats: Sequence[Dim]) -> Expr:
    x = node.reshape(x, [1] * (len(repeats) - node.rank(x)) + list(node.shape(x)))
    if all(isinstance(count, int) for count in repeats):
        return node.op("tile", x, repeats=tuple(repeats)) if any(count != 1 for count in repeats) else x
    # Counts that depend on sizes: (a, b) -> (1, a, 1, b) -> (m, a, n, b) -> (m * a, n * b).
    shape = node.shape(x)
    spread = node.reshape(x, [size for dim in shape for size in (1, dim)])
    repeated = node.broadcast_to(spread, [size for dim, n in zip(shape, repeats, strict=True) for size in (n, dim)])
    return node.reshape(repeated, node.result.shape)


@converter("aten.cat.default")
def concat(node: Node, parts: Sequence[Expr], axis: int) -> Expr:
    type_ = node.result
    # Torch lets empty vectors be joined with anything.
    kept = [node.cast(part, type_.dtype) for part in parts if node.shape(part) != (0,) or type_.rank == 1]
    if not kept:
        return node.full(0, type_.shape, type_.dtype)
    return node.concat(kept, node.axis(axis, type_.rank))


@converter("aten.stack.default")
def stack(node: Node, parts: Sequence[Expr], axis: int) -> Expr:
    type_ = node.result
    at = node.axis(axis, type_.rank)
    shape = [1 if i == at else dim for i, dim in enumerate(type_.shape)]
    return node.op("concat", *(node.reshape(node.cast(part, type_.dtype), shape) for part in parts), axis=at)


@converter("aten.split_with_sizes.default")
def split_with_sizes(node: Node, x: Expr, sizes: Sequence[Dim], axis: int) -> list[Expr]:
    return node.ops("split", x, axis=node.axis(axis, node.rank(x)), sections=tuple(sizes))


@converter("aten.split.Tensor", "aten.chunk.default", "aten.unbind.int", "aten.tensor_split.indices")
def split(node: Node, x: Expr, *rest: object) -> list[Expr]:
    axis = node.axis(int(rest[-1]), node.rank(x))  # pyright: ignore[reportArgumentType]
    types = [type_ for type_ in node.results if type_ is not None]
    unbound = types[0].rank < node.rank(x)
    parts = node.ops("split", x, axis=axis, sections=tuple(1 if unbound else type_.shape[axis] for type_ in types))
    return [node.reshape(part, type_.shape) for part, type_ in zip(parts, types, strict=True)]


@converter("aten.flip.default")
def flip(node: Node, x: Expr, axes: Sequence[int]) -> Expr:
    return node.op("flip", x, axes=node.axes(axes, node.rank(x))) if axes and node.rank(x) else x


@converter("aten.diagonal.default")
def diagonal(node: Node, x: Expr, offset: int, first: int, second: int) -> Expr:
    rank = node.rank(x)
    rest = [axis for axis in range(rank) if axis not in (first % rank, second % rank)]
    x = node.permute(x, [*rest, first % rank, second % rank])
    *batch, rows, columns = node.shape(x)
    width = node.require_fixed(columns, "the size of the matrices")
    count = node.require_fixed(node.result.shape[-1], "the length of the diagonal")
    places = np.arange(count) * (width + 1) + (offset if offset >= 0 else -offset * width)
    return node.op("take", node.reshape(x, (*batch, rows * columns)), places, axis=len(batch))


@converter("aten.as_strided.default")
def as_strided(node: Node, x: Expr, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim | None) -> Expr:
    source = node.fx_node.args[0].meta["val"]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    dim = node.importer.shared.sizes.dim
    order = _dense_order(node.shape(x), [dim(step) for step in source.stride()])
    if order is None:
        node.reject("its input is not dense")
    stored = node.permute(x, order)
    start = 0 if offset is None else offset - dim(source.storage_offset())
    wanted = _dense_order(size, stride)
    if wanted is not None and start == 0 and dims.product(size) == x.tensor_type.numel:
        return node.from_front(node.reshape(stored, [size[axis] for axis in wanted]), wanted)
    numbers = (start, x.tensor_type.numel, *size, *stride)
    if not all(isinstance(number, int) for number in numbers):
        return node.op("take", node.flat(stored), _open_places(node, start, x.tensor_type.numel, size, stride), axis=0)
    indices = np.asarray(start, np.int64)
    for count, step in zip(size, stride, strict=True):
        steps = np.arange(node.require_fixed(count, "a size"))
        indices = indices[..., None] + steps * node.require_fixed(step, "a stride")
    numel = node.require_fixed(x.tensor_type.numel, "the input's size")
    if indices.size and not 0 <= indices.min() <= indices.max() < numel:
        node.reject("it reads memory outside of its input")
    return node.op("take", node.flat(stored), indices, axis=0)


def _open_places(node: Node, start: Dim, end: Dim, size: Sequence[Dim], stride: Sequence[Dim]) -> Expr:
    """Return the places of a strided view's elements, computed at run time; none lies outside of the memory."""
    places = node.expr(start, "int64")
    for count, step in zip(size, stride, strict=True):
        along = node.op("multiply", node.op("arange", count=count), node.expr(step, "int64"))
        places = node.op("add", node.unsqueeze(places, node.rank(places)), along)
    return node.op("maximum", node.op("minimum", places, node.expr(end - 1, "int64")), 0)


def _dense_order(shape: Sequence[Dim], strides: Sequence[Dim]) -> list[int] | None:
    """Return the axes as they lie in memory, outermost first; None where elements overlap or there are gaps."""
    inner: list[int] = []
    step: Dim = 1
    waiting = [axis for axis, size in enumerate(shape) if size != 1]
    while waiting:
        found = next((axis for axis in waiting if strides[axis] == step), None)
        if found is None:
            return None
        waiting.remove(found)
        inner.append(found)
        step = step * shape[found]
    return [*(axis for axis, size in enumerate(shape) if size == 1), *reversed(inner)]


@converter("aten.constant_pad_nd.default")
def pad(node: Node, x: Expr, pads: Sequence[Dim], value: float) -> Expr:
    if node.dtype(x) == "bool":
        padded = node.op("pad", node.cast(x, "uint8"), pads=_pads(node, x, pads), value=float(bool(value)))
        return node.cast(padded, "bool")
    return node.op("pad", x, pads=_pads(node, x, pads), value=float(value))


@converter("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def pad_reflected(node: Node, x: Expr, pads: Sequence[Dim]) -> Expr:
    return node.op("pad", x, pads=_pads(node, x, pads), mode="reflect")


@converter("aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def pad_repeated(node: Node, x: Expr, pads: Sequence[Dim]) -> Expr:
    return _crop(node, x, pads, "edge")


def _crop(node: Node, x: Expr, pads: Sequence[Dim], mode: str) -> Expr:
    """Negative pads crop what the others have made larger."""
    rank = node.rank(x)
    whole = _pads(node, x, pads)
    kept = tuple(max(pad, 0) if isinstance(pad, int) else pad for pad in whole)
    x = node.op("pad", x, pads=kept, mode=mode)
    for axis in range(rank):
        begin, end = (max(-pad, 0) if isinstance(pad, int) else 0 for pad in (whole[axis], whole[rank + axis]))
        x = node.slice(x, axis, begin, node.shape(x)[axis] - end)
    return x


def _pads(node: Node, x: Expr, pads: Sequence[Dim]) -> tuple[Dim, ...]:
    """Torch lists (begin, end) from the last axis on; we list all begins, then all ends."""
    rank = node.rank(x)
    begins: list[Dim] = [0] * rank
    ends: list[Dim] = [0] * rank
    for position in range(len(pads) // 2):
        begins[rank - 1 - position], ends[rank - 1 - position] = pads[2 * position], pads[2 * position + 1]
    return (*begins, *ends)
