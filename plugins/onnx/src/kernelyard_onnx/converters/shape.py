"""Operators that move, join and cut data without computing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim, Shape
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter


@converter("Reshape")
def reshape_by_attribute(node: Node) -> Expr:
    x = node.input(0)
    return node.reshape(x, _complete(node, node.shape(x), node.require_attr("shape"), allow_zero=False))


@converter("Reshape", since=5)
def reshape(node: Node) -> Expr:
    x = node.input(0)
    target = node.builder.known.dims(node.input(1))
    if target is None:
        return node.reshape(x, node.sizes(_emit_completed(node, x, node.input(1)), "shape"))
    return node.reshape(x, _complete(node, node.shape(x), target, bool(node.attr("allowzero", 0))))


def _complete(node: Node, shape: Shape, target: Sequence[Dim], allow_zero: bool) -> list[Dim]:
    """`target` with 0 (take over the size) and -1 (what is left) replaced."""
    sizes = list(target)
    for axis, size in enumerate(sizes):
        if size == 0 and not allow_zero:
            sizes[axis] = (
                shape[axis]
                if axis < len(shape)
                else node.reject("a 0 in its shape copies a dimension that its input does not have")
            )
    unknown = [axis for axis, size in enumerate(sizes) if size == -1]
    if len(unknown) > 1:
        node.reject("its shape has more than one -1")
    if unknown:
        sizes[unknown[0]] = _rest(node, shape, [size for axis, size in enumerate(sizes) if axis != unknown[0]])
    return sizes


def _emit_completed(node: Node, x: Expr, target: Expr) -> Expr:
    """`_complete` of a shape that data decides, as a part of the program."""
    shape = node.shape(x)
    count = node.require_fixed(node.shape(target)[0], "rank of its result")
    if not node.attr("allowzero", 0):
        taken_over = node.numbers([shape[axis] if axis < len(shape) else 0 for axis in range(count)])
        target = node.op("where", node.op("equal", target, 0), taken_over, target)
    is_open = node.op("equal", target, -1)
    known = node.op("prod", node.op("where", is_open, np.ones(count, np.int64), target), axes=(0,), keepdims=True)
    rest = node.op("divide", node.numbers([dims.product(shape)]), node.op("maximum", known, 1))
    return node.op("where", is_open, rest, target)


def _rest(node: Node, shape: Shape, known: Sequence[Dim]) -> Dim:
    """Return the product of `shape` divided by that of `known`; equal sizes are cancelled first, to divide exactly."""
    numerator, denominator = list(shape), []
    for size in known:
        if size in numerator:
            numerator.remove(size)
        else:
            denominator.append(size)
    divisor = dims.product(denominator)
    if divisor == 0:
        node.reject("a size of 0 makes its -1 ambiguous")
    return dims.floordiv(dims.product(numerator), divisor)


@converter("Flatten")
def flatten(node: Node) -> Expr:
    x = node.input(0)
    axis, rank, shape = node.attr("axis", 1), node.rank(x), node.shape(x)
    if not -rank <= axis <= rank:
        node.reject(f"its axis {axis} is out of range for {rank} dimensions")
    at = axis + rank if axis < 0 else axis
    return node.reshape(x, (dims.product(shape[:at]), dims.product(shape[at:])))


@converter("Transpose")
def transpose(node: Node) -> Expr:
    x = node.input(0)
    return node.permute(x, node.axes(node.attr("perm", range(node.rank(x))[::-1]), node.rank(x)))


@converter("Squeeze")
def squeeze(node: Node) -> Expr:
    x, axes = node.input(0), node.attr_or_input("axes", 1)
    shape = node.shape(x)
    if axes is None:
        if any(not isinstance(dim, int) for dim in shape):
            node.reject_undecided(
                "it has no axes input, and the sizes of its input are not fixed", *node.builder.deciding(shape)
            )
        removed = {axis for axis, dim in enumerate(shape) if dim == 1}
    else:
        removed = set(node.axes(axes, len(shape)))
    wrong = [axis for axis in removed if isinstance(shape[axis], int) and shape[axis] != 1]
    if wrong:
        node.reject(f"it squeezes axis {wrong[0]}, whose size is {shape[wrong[0]]}")
    return node.reshape(x, [dim for axis, dim in enumerate(shape) if axis not in removed])


@converter("Unsqueeze")
def unsqueeze(node: Node) -> Expr:
    x, axes = node.input(0), node.attr_or_input("axes", 1) or ()
    rank = node.rank(x) + len(axes)
    added, rest = set(node.axes(axes, rank)), iter(node.shape(x))
    if len(added) != len(axes):
        node.reject("its axes have duplicates")
    return node.reshape(x, [1 if axis in added else next(rest) for axis in range(rank)])


@converter("Concat")
def concat(node: Node) -> Expr:
    parts = node.require_inputs()
    if not parts:
        node.reject("it has no inputs to concatenate")
    return node.concat(parts, node.axis(node.attr("axis", 1), node.rank(parts[0])))


@converter("Expand", since=8)
def expand(node: Node) -> Expr:
    x, target = node.input(0), list(node.sizes(node.input(1), "shape"))
    shape = list(node.shape(x))
    rank = max(len(shape), len(target))
    pairs = zip([1] * (rank - len(shape)) + shape, [1] * (rank - len(target)) + target, strict=True)
    return node.broadcast_to(x, [dims.broadcast(have, want) for have, want in pairs])


@converter("Tile")
def tile_along_one_axis(node: Node) -> Expr:
    x, count = node.input(0), node.sizes(node.reshape(node.input(1), (1,)), "tiles")[0]
    axis = node.axis(int(node.scalar(node.input(2), "axis")), node.rank(x))
    return node.concat([x] * node.require_fixed(count, "number of its tiles"), axis)


@converter("Tile", since=6)
def tile(node: Node) -> Expr:
    x, repeats = node.input(0), node.sizes(node.input(1), "repeats")
    if len(repeats) != node.rank(x):
        node.reject(f"it has {len(repeats)} repeats for {node.rank(x)} dimensions")
    if all(isinstance(count, int) for count in repeats):
        return node.op("tile", x, repeats=repeats)
    # Counts that depend on sizes: (a, b) -> (1, a, 1, b) -> (m, a, n, b) -> (m * a, n * b).
    shape = node.shape(x)
    spread = node.reshape(x, [size for dim in shape for size in (1, dim)])
    repeated = node.broadcast_to(spread, [size for dim, n in zip(shape, repeats, strict=True) for size in (n, dim)])
    return node.reshape(repeated, [dim * n for dim, n in zip(shape, repeats, strict=True)])


@converter("Split")
def split(node: Node) -> Sequence[Expr]:
    x, given = node.input(0), node.optional(1)
    sizes = node.attr("split") if given is None else node.sizes(given, "split")
    axis = node.axis(node.attr("axis", 0), node.rank(x))
    count = node.attr("num_outputs", len(node.proto.output))
    sections = _equal_parts(node, node.shape(x)[axis], count) if sizes is None else tuple(sizes)
    return node.ops("split", x, axis=axis, sections=sections)


def _equal_parts(node: Node, whole: Dim, count: int) -> tuple[Dim, ...]:
    """Before opset 18 the parts come out even (the run time checks a size that is open); since then the last may be
    smaller."""
    if node.opset < 18:
        return (dims.floordiv(whole, count),) * count
    part = dims.ceildiv(whole, count)
    return (*(part,) * (count - 1), whole - part * (count - 1))


@converter("DepthToSpace")
def depth_to_space(node: Node) -> Expr:
    x, block = node.input(0), node.require_attr("blocksize")
    n, c, h, w = node.shape(x)
    depth = dims.floordiv(c, block * block)
    if node.attr("mode", "DCR") == "DCR":
        shape, axes = (n, block, block, depth, h, w), (0, 3, 4, 1, 5, 2)
    else:
        shape, axes = (n, depth, block, block, h, w), (0, 1, 4, 2, 5, 3)
    return node.reshape(node.permute(node.reshape(x, shape), axes), (n, depth, h * block, w * block))


@converter("SpaceToDepth")
def space_to_depth(node: Node) -> Expr:
    x, block = node.input(0), node.require_attr("blocksize")
    n, c, h, w = node.shape(x)
    low, left = dims.floordiv(h, block), dims.floordiv(w, block)
    # Where the positions inside a block go: before the channels (DCR), or behind each (CRD).
    order = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    spread = node.permute(node.reshape(x, (n, c, low, block, left, block)), order)
    return node.reshape(spread, (n, c * block * block, low, left))
