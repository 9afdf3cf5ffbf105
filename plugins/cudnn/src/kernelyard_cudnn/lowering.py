"""From a node of a JSON graph, at known shapes, to a graph of cuDNN operations.

Orders are those of `kernelyard_cudnn.layout`, over the axes that cuDNN knows: (N, C, spatial...), (B, H, S, D).

- convolution, convolution_transpose: operands x, w, and what stages name; attributes padding, strides, dilation (one
  number for each spatial axis), orders {x, w, y}, stages, tf32.
- attention: operands that views name, bias, lengths; attributes views {q, k, v}, order (of the result), scale, causal.
- layer_norm, rms_norm: operands x, scale, bias; attributes axes (how many of the last ones), epsilon.

A stage: mode, parameters; where it has an operand: its role, and the order of the result's axes as the operand, whose
axes are the last of these, has them. A view: role, order, begin (elements before the first one) and size (of a row that
it takes of the last axis; or heads, size where that row is split into heads).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

import numpy as np

from kernelyard.errors import CodegenError
from kernelyard.runtime.api import JSONNode
from kernelyard_cudnn.graph import (
    ACTIVATIONS,
    BINARY,
    CAUSAL,
    Attention,
    Convolution,
    ConvolutionTranspose,
    Graph,
    Ints,
    Node,
    Norm,
    Pointwise,
    Tensor,
    Window,
)
from kernelyard_cudnn.layout import channels_first, channels_last, is_same_memory, sizes_in, strides_in

WIDE = "float32"
PARAMETERS = ("negative_slope", "lower_clip", "upper_clip")


@dataclass(frozen=True)
class Shaped:
    """A tensor as the program has it: dense and row-major."""

    shape: Ints
    dtype: str


@dataclass(frozen=True)
class Lowered:
    """A graph, and where its tensors in memory are.

    operands: by uid, the role, and how many elements of it come before. filled: by uid, arrays that the graph needs
    besides. result: the uid of what it writes.
    """

    graph: Graph
    operands: Mapping[int, tuple[str, int]]
    filled: Mapping[int, np.ndarray]

    @property
    def result(self) -> int:
        return self.graph.result.uid


def lower(node: JSONNode, operands: Mapping[str, Shaped], result: Shaped, where: str) -> Lowered:
    """Return the graph of a node for operands of these shapes.

    Raises: CodegenError for a node that makes no sense.
    """
    if node.op not in LOWERINGS:
        raise CodegenError(f"the cudnn runtime has no kernel {node.op!r}", where=where, expected=", ".join(LOWERINGS))
    lowering = Lowering(node, operands, result)
    try:
        lowered = LOWERINGS[node.op](lowering)
        _check_places(lowered, operands)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Nodes come from files too: what their attributes say need not make sense.
        raise CodegenError(
            f"the {node.op} node is malformed", where=where, found=f"{type(error).__name__}: {error}"
        ) from error
    return lowered


class Lowering:
    """A node while its graph is made; tensors are numbered as they come up."""

    def __init__(self, node: JSONNode, operands: Mapping[str, Shaped], result: Shaped) -> None:
        self.attrs: Mapping[str, Any] = node.attrs
        self.given = operands
        self.result = result
        self.places: dict[int, tuple[str, int]] = {}
        self.filled: dict[int, np.ndarray] = {}
        self._uids = count(1)

    def tensor(self, dims: Sequence[int], strides: Sequence[int], dtype: str, is_virtual: bool = False) -> Tensor:
        """Return a new tensor."""
        _require(len(dims) == len(strides), f"strides {strides} of dims {dims}")
        return Tensor(next(self._uids), tuple(dims), tuple(strides), dtype, is_virtual)

    def operand(self, role: str, dims: Sequence[int], strides: Sequence[int], begin: int = 0) -> Tensor:
        """Return the tensor that an operand is, or that is a part of it."""
        tensor = self.tensor(dims, strides, self.given[role].dtype)
        self.places[tensor.uid] = role, begin
        return tensor

    def constant(self, array: np.ndarray) -> Tensor:
        """Return a tensor in memory that no operand holds."""
        tensor = self.tensor(array.shape, strides_in(channels_first(array.ndim), array.shape), array.dtype.name)
        self.filled[tensor.uid] = array
        return tensor

    def finish(self, *nodes: Node, tf32: bool = False) -> Lowered:
        """Return the result of lowering."""
        return Lowered(Graph(nodes, tf32), self.places, self.filled)


# --- convolutions -----------------------------------------------------------------------------------------------------
def _convolution(lowering: Lowering) -> Lowered:
    return _lower_convolution(lowering, Convolution, _convolution_size)


def _convolution_transpose(lowering: Lowering) -> Lowered:
    return _lower_convolution(lowering, ConvolutionTranspose, None)


def _lower_convolution(lowering: Lowering, kind: Any, size_of: Callable[..., int] | None) -> Lowered:
    attrs = lowering.attrs
    images = _Images(lowering, attrs["orders"])
    window = _window(attrs)
    x, w = images.operand("x"), images.operand("w")
    dims = images.result_dims
    _require(len(window.padding) == len(dims) - 2, f"{len(window.padding)} spatial axes of {len(dims) - 2}")
    if size_of is not None:
        moves = window.padding, window.strides, window.dilation
        wanted = tuple(size_of(*sizes) for sizes in zip(x.dims[2:], w.dims[2:], *moves, strict=True))
        _require(dims[2:] == wanted, f"a result of {dims} over space of {wanted}")
    _check_channels(kind, x, w, dims)
    stages = attrs["stages"]
    nodes: list[Node] = [kind(x, w, images.create_result(is_last=not stages), window)]
    for number, stage in enumerate(stages):
        nodes.append(_stage(stage, nodes[-1].y, images, is_last=number == len(stages) - 1))
    return lowering.finish(*nodes, tf32=_flag(attrs["tf32"]))


class _Images:
    """The tensors of a convolution. Where memory does not tell, they lie like x; one spatial axis is two."""

    def __init__(self, lowering: Lowering, orders: Mapping[str, Sequence[int]]) -> None:
        self._lowering = lowering
        self._orders = {name: _order(order) for name, order in orders.items()}
        self._rank = len(self._orders["y"])
        self._usual = channels_first(max(self._rank, 4))
        data = lowering.given["x"].shape
        dims, order = self._wide(sizes_in(self._orders["x"], data), self._orders["x"])
        if is_same_memory(order, channels_last(len(dims)), dims):
            self._usual = channels_last(len(dims))
        self.result_dims, self._result_order = self._wide(
            sizes_in(self._orders["y"], lowering.result.shape), self._orders["y"]
        )

    def operand(self, role: str) -> Tensor:
        """x or w."""
        dims, order = self._wide(sizes_in(self._orders[role], self._lowering.given[role].shape), self._orders[role])
        return self._lowering.operand(role, dims, strides_in(self._order_of(dims, order), dims))

    def beside(self, role: str, order: Sequence[int]) -> Tensor:
        """Return an operand of a stage: its axes are the last ones of the order."""
        shape = self._lowering.given[role].shape
        _require(len(shape) <= self._rank == len(order), f"{role} of shape {shape} beside {self._rank} axes")
        stored = (1,) * (self._rank - len(shape)) + shape
        dims, wide = self._wide(sizes_in(order, stored), order)
        fits = all(mine in (1, its) for mine, its in zip(dims, self.result_dims, strict=True))
        _require(fits, f"{role} of {dims} beside {self.result_dims}")
        return self._lowering.operand(role, dims, strides_in(self._order_of(dims, wide), dims))

    def create_result(self, is_last: bool) -> Tensor:
        """Return the tensor of an operation's result: the output, or an intermediate."""
        dims = self.result_dims
        strides = strides_in(self._order_of(dims, self._result_order), dims)
        return self._lowering.tensor(dims, strides, self._lowering.result.dtype if is_last else WIDE, not is_last)

    def _order_of(self, dims: Ints, order: Ints) -> Ints:
        return self._usual if is_same_memory(order, self._usual, dims) else order

    def _wide(self, dims: Ints, order: Sequence[int]) -> tuple[Ints, Ints]:
        if self._rank > 3:
            return dims, tuple(order)
        # (N, C, L) is (N, C, 1, L): the new axis 2 lies right outside of L, which becomes axis 3.
        places = {0: (0,), 1: (1,), 2: (2, 3)}
        return (*dims[:2], 1, *dims[2:]), tuple(axis for each in order for axis in places[each])


def _window(attrs: Mapping[str, Any]) -> Window:
    padding, strides, dilation = (tuple(map(_natural, attrs[name])) for name in ("padding", "strides", "dilation"))
    _require(0 not in strides and 0 not in dilation, "a window that does not move")
    if len(padding) == 1:
        padding, strides, dilation = (0, *padding), (1, *strides), (1, *dilation)
    _require(len(padding) == len(strides) == len(dilation) in (2, 3), "one number for each of two or three axes")
    return Window(padding, strides, dilation)


def _convolution_size(size: int, kernel: int, padding: int, stride: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _check_channels(kind: Any, x: Tensor, w: Tensor, dims: Ints) -> None:
    data, result = (x.dims, dims) if kind is Convolution else (dims, x.dims)
    groups = data[1] // w.dims[1]
    fits = data[1] == groups * w.dims[1] and result[1] == w.dims[0] and w.dims[0] % groups == 0 and data[0] == result[0]
    _require(fits, f"x of {x.dims}, w of {w.dims}, a result of {dims}")


def _stage(stage: Mapping[str, Any], x: Tensor, images: _Images, is_last: bool) -> Pointwise:
    mode, role = stage["mode"], stage.get("operand")
    _require(mode in (ACTIVATIONS if role is None else BINARY), f"a stage {mode} of {role or 'one operand'}")
    parameters = {name: float(value) for name, value in stage.get("parameters", {}).items()}
    _require(set(parameters) <= set(PARAMETERS), f"parameters {parameters}")
    operand = None if role is None else images.beside(role, _order(stage["order"]))
    return Pointwise(mode, x, images.create_result(is_last), operand, tuple(parameters.items()))


# --- attention --------------------------------------------------------------------------------------------------------
def _attention(lowering: Lowering) -> Lowered:
    attrs = lowering.attrs
    q, k, v = (_view(lowering, attrs["views"][name]) for name in "qkv")
    order = _order(attrs["order"])
    dims = sizes_in(order, lowering.result.shape)
    batch, heads, rows, size = q.dims
    shared, columns = k.dims[1:3]
    _require(dims == (batch, heads, rows, v.dims[3]) and k.dims == (batch, shared, columns, size), f"q of {q.dims}")
    _require(v.dims[:3] == k.dims[:3] and heads % shared == 0, f"k of {k.dims} and v of {v.dims}")
    scale, causal = float(attrs["scale"]), attrs["causal"]
    _require(causal in CAUSAL, f"causal {causal}")
    bias = _bias(lowering, (batch, heads, rows, columns)) if "bias" in lowering.given else None
    lengths = _lengths(lowering, batch, rows) if "lengths" in lowering.given else (None, None)
    y = lowering.tensor(dims, strides_in(order, dims), lowering.result.dtype)
    return lowering.finish(Attention(q, k, v, y, scale, causal, bias, *lengths))


def _view(lowering: Lowering, view: Mapping[str, Any]) -> Tensor:
    """Return queries, keys or values as a tensor: a whole operand, or columns of its last axis."""
    role, order, begin = view["role"], _order(view["order"]), _natural(view.get("begin", 0))
    stored = lowering.given[role].shape
    steps = strides_in(channels_first(len(stored)), stored)
    if "size" in view:
        size, heads = _natural(view["size"]), _natural(view.get("heads", 0))
        _require(begin + size * (heads or 1) <= stored[-1], f"{view} of {stored}")
        stored, steps = (
            (*stored[:-1], *((heads, size) if heads else (size,))),
            (*steps[:-1], *((size, 1) if heads else (1,))),
        )
    return lowering.operand(role, sizes_in(order, stored), sizes_in(order, steps), begin)


def _bias(lowering: Lowering, scores: Ints) -> Tensor:
    shape = lowering.given["bias"].shape
    dims = (1,) * (4 - len(shape)) + shape
    fits = len(dims) == 4 and all(mine in (1, its) for mine, its in zip(dims, scores, strict=True))
    _require(fits, f"a bias of {shape} beside {scores}")
    return lowering.operand("bias", dims, strides_in(channels_first(4), dims))


def _lengths(lowering: Lowering, batch: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return the sequence lengths: of queries, all rows; of keys, the operand."""
    shape = lowering.given["lengths"].shape
    _require(prod(shape) == batch, f"lengths of {shape} for {batch} examples")
    of_keys = lowering.operand("lengths", (batch, 1, 1, 1), (1, 1, 1, 1))
    return lowering.constant(np.full((batch, 1, 1, 1), rows, np.int32)), of_keys


# --- norms ------------------------------------------------------------------------------------------------------------
def _norm(lowering: Lowering) -> Lowered:
    """Lower a normalization: the leading axes are rows; cuDNN normalizes over all axes but the first."""
    data, axes = lowering.given["x"], _natural(lowering.attrs["axes"])
    _require(1 <= axes <= len(data.shape) and lowering.result.shape == data.shape, f"{axes} axes of {data.shape}")
    split = len(data.shape) - axes
    rows, columns = prod(data.shape[:split]), prod(data.shape[split:])

    def row(role: str) -> Tensor:
        _require(prod(lowering.given[role].shape) == columns, f"{role} of {lowering.given[role].shape}")
        return lowering.operand(role, (1, columns, 1, 1), (columns, 1, 1, 1))

    strides = (columns, 1, 1, 1)
    x, scale = lowering.operand("x", (rows, columns, 1, 1), strides), row("scale")
    bias = row("bias") if "bias" in lowering.given else None
    y = lowering.tensor((rows, columns, 1, 1), strides, lowering.result.dtype)
    return lowering.finish(Norm(x, scale, bias, y, float(lowering.attrs["epsilon"])))


LOWERINGS: Mapping[str, Callable[[Lowering], Lowered]] = {
    "convolution": _convolution,
    "convolution_transpose": _convolution_transpose,
    "attention": _attention,
    "layer_norm": _norm,
    "rms_norm": _norm,
}


# --- what holds for every graph ---------------------------------------------------------------------------------------
def _check_places(lowered: Lowered, operands: Mapping[str, Shaped]) -> None:
    """Check that no tensor extends beyond the operand that it is a part of."""
    by_uid = {tensor.uid: tensor for tensor in lowered.graph.tensors}
    for uid, (role, begin) in lowered.operands.items():
        found = prod(operands[role].shape)
        _require(begin + by_uid[uid].extent <= found, f"{role} of {found} elements, {by_uid[uid]} at {begin}")


def _require(condition: bool, found: str) -> None:
    if not condition:
        raise ValueError(found)


def _natural(value: Any) -> int:
    _require(isinstance(value, int) and not isinstance(value, bool) and value >= 0, f"{value!r} is no size")
    return value


def _order(value: Sequence[int]) -> Ints:
    order = tuple(map(_natural, value))
    _require(sorted(order) == list(range(len(order))), f"{value!r} is no order of axes")
    return order


def _flag(value: Any) -> bool:
    _require(isinstance(value, bool), f"{value!r} is neither true nor false")
    return value
