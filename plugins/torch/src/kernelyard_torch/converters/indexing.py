"""Reading and writing at positions that are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr, TensorType, TupleType, broadcast_shapes
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("aten.embedding.default")
def embedding(node: Node, table: Expr, indices: Expr, *_: object) -> Expr:
    return node.op("take", table, indices)


@converter("aten.index_select.default")
def index_select(node: Node, x: Expr, axis: int, indices: Expr) -> Expr:
    if not node.rank(x):
        return x
    return node.op("take", x, node.flat(indices), axis=node.axis(axis, node.rank(x)))


@converter("aten.gather.default")
def gather(node: Node, x: Expr, axis: int, indices: Expr, *_: object) -> Expr:
    if 0 in node.shape(indices):
        return node.full(0, node.shape(indices), node.dtype(x))
    if not node.rank(x) or not node.rank(indices):
        return node.reshape(node.op("take", node.flat(x), node.flat(indices)), node.shape(indices))
    return node.op("gather_elements", x, indices, axis=node.axis(axis, node.rank(x)))


@converter("aten.masked_select.default")
def masked_select(node: Node, x: Expr, mask: Expr) -> Expr:
    shape = broadcast_shapes(node.shape(x), node.shape(mask))
    places = node.op(
        "take", node.flat(node.broadcast_to(x, shape)), _flat_positions(node, node.broadcast_to(mask, shape))
    )
    return node.reshape(places, node.result.shape)


def _flat_positions(node: Node, mask: Expr) -> Expr:
    """Return the flat indices at which a mask is true."""
    (count,) = node.result.shape
    return node.reshape(_positions(node, node.flat(mask), count), (count,))


@converter("aten.nonzero.default")
def nonzero(node: Node, x: Expr) -> Expr:
    count = node.result.shape[0]
    return _positions(node, x, count)


def _positions(node: Node, x: Expr, count: Dim) -> Expr:
    """Return the indices of x's nonzero elements: (count, rank)."""
    found = node.emit_data_dependent("nonzero", x, type_=TensorType((max(node.rank(x), 1), count), "int64"))
    if not node.rank(x):
        return node.full(0, (count, 0), "int64")
    return node.reshape(node.permute(found, (1, 0)), (count, node.rank(x)))


@converter("aten._unique2.default")
def unique(node: Node, x: Expr, is_sorted: bool, return_inverse: bool, return_counts: bool) -> list[Expr | None]:
    """Return the unique elements, always sorted, where each element is among them, and how often each occurs."""
    count = node.result.shape
    indices, flat = TensorType(count, "int64"), TensorType((x.tensor_type.numel,), "int64")
    found = node.emit_data_dependent("unique", node.flat(x), type_=TupleType((node.result, indices, flat, indices)))
    values, _, inverse, counts = (node.builder.get(found, index) for index in range(4))
    return [values, node.reshape(inverse, node.shape(x)) if return_inverse else None, counts if return_counts else None]


@dataclass(frozen=True)
class Selection:
    """The selection of a torch index: axes, index vectors (..., len(axes)), and where these axes go in the result."""

    axes: tuple[int, ...]
    vectors: Expr
    shape: tuple[Dim, ...]
    position: int


def _selection(node: Node, x: Expr, indices: Sequence[Expr | None]) -> Selection:
    axes: list[int] = []
    parts: list[Expr] = []
    axis = 0
    masks = sum(1 for index in indices if index is not None and node.dtype(index) in ("bool", "uint8"))
    for index in indices:
        if index is None:
            axis += 1
        elif node.dtype(index) in ("bool", "uint8"):
            if masks > 1:
                node.reject("it indexes by several boolean masks")
            count = node.importer.mask_size(node, [node.shape(each) for each in indices if each is not None])
            found = _positions(node, node.cast(index, "bool"), count)
            for column in range(node.rank(index)):
                parts.append(node.select(found, 1, column))
                axes.append(axis)
                axis += 1
        else:
            parts.append(node.cast(index, "int64"))
            axes.append(axis)
            axis += 1
    return _stack(node, axes, parts)


def _stack(node: Node, axes: Sequence[int], parts: Sequence[Expr]) -> Selection:
    whole = parts[0]
    for part in parts[1:]:  # for its shape alone
        whole = node.op("add", whole, part)
    shape = node.shape(whole)
    vectors = node.stack([node.broadcast_to(part, shape) for part in parts], len(shape))
    adjacent = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    return Selection(tuple(axes), vectors, shape, axes[0] if adjacent else 0)


@converter("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(node: Node, x: Expr, indices: Sequence[Expr | None]) -> Expr:
    if not node.rank(x) or all(each is None for each in indices):
        return node.reshape(x, node.result.shape)
    selection = _selection(node, x, indices)
    if len(selection.axes) == 1:
        return node.op("take", x, node.reshape(selection.vectors, selection.shape), axis=selection.axes[0])
    taken = node.op("gather_nd", node.to_front(x, selection.axes), selection.vectors)
    return node.from_front(taken, range(selection.position, selection.position + len(selection.shape)))


@converter("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(node: Node, x: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool, *_: object) -> Expr:
    masked = _masked_fill(node, x, indices, values, accumulate)
    if masked is not None:
        return masked
    if not node.rank(x):
        return node.reject("it writes to a tensor of rank 0")
    selection = _selection(node, x, indices)
    front = node.to_front(x, selection.axes)
    rest = node.shape(front)[len(selection.axes) :]
    at, count = selection.position, len(selection.shape)
    values = node.broadcast_to(node.cast(values, node.dtype(x)), (*rest[:at], *selection.shape, *rest[at:]))
    updates = node.permute(values, [*range(at, at + count), *range(at), *range(at + count, node.rank(values))])
    reduction = "add" if accumulate else "none"
    return node.from_front(_scatter_nd(node, front, selection.vectors, updates, reduction), selection.axes)


def _scatter_nd(node: Node, data: Expr, vectors: Expr, updates: Expr, reduction: str) -> Expr:
    if node.dtype(data) != "bool" or reduction == "none":
        return node.op("scatter_nd", data, vectors, updates, reduction=reduction)
    wide = node.op("scatter_nd", node.cast(data, "int32"), vectors, node.cast(updates, "int32"), reduction=reduction)
    return node.cast(wide, "bool")


def _masked_fill(node: Node, x: Expr, indices: Sequence[Expr | None], values: Expr, accumulate: bool) -> Expr | None:
    """Write one value where a mask holds, which needs no positions."""
    given = [each for each in indices if each is not None]
    leading = len(given) == 1 and indices[0] is not None and node.dtype(given[0]) == "bool"
    if not leading or values.tensor_type.numel != 1 or accumulate:
        return None
    mask = node.reshape(given[0], (*node.shape(given[0]), *(1,) * (node.rank(x) - node.rank(given[0]))))
    return node.op("where", mask, node.reshape(node.cast(values, node.dtype(x)), ()), x)
