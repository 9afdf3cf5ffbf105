"""OpEmitter: what converters of any frontend emit for a node, and how they give up on one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim, Shape, SymbolicDim
from kernelyard.dtypes import to_numpy
from kernelyard.ir import Constant, Expr
from kernelyard.tir.primfunc import neutral_element

Scalar: TypeAlias = "int | float | bool | SymbolicDim"
Operand: TypeAlias = "Expr | np.ndarray | Scalar"
MAX_LISTED = 10


class RejectedError(Exception):
    """A node cannot be expressed; importers collect these and report all of them. Never leaves a frontend.

    inputs: those of the model whose values would decide it.
    """

    def __init__(self, reason: str, inputs: frozenset[str] = frozenset()) -> None:
        super().__init__(reason)
        self.inputs = inputs


@dataclass(frozen=True)
class Problem:
    """A node that could not be converted: its operator, where it stands, and why. inputs: as of `RejectedError`."""

    op: str
    origin: str
    reason: str
    inputs: frozenset[str] = frozenset()


def unsupported(model: str, problems: Sequence[Problem]) -> dict[str, str]:
    """Return the parts of an UnsupportedOperatorError: operators by name, and for each one and reason the nodes."""
    ops = sorted({problem.op for problem in problems})
    nodes: dict[tuple[str, str], dict[str, None]] = {}
    for problem in problems:
        nodes.setdefault((problem.op, problem.reason), {})[problem.origin] = None
    lines = [f"{op}: {reason}: {_list_names([*origins])}" for (op, reason), origins in sorted(nodes.items())]
    message = f"the {model} uses {len(ops)} operator{'s' if len(ops) > 1 else ''} in a way that is not supported"
    return {"message": f"{message}: {', '.join(ops)}", "where": "; ".join(lines), "found": ", ".join(ops)}


def _list_names(origins: Sequence[str]) -> str:
    rest = len(origins) - MAX_LISTED
    return ", ".join(origins[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


class OpEmitter(ABC):
    """Emits ops for one node of a model; those that would change nothing are left out."""

    @abstractmethod
    def op(self, name: str, *args: Operand, **attrs: Any) -> Expr:
        """Emit an op that returns one tensor; numbers take the dtype of the first tensor argument."""

    @abstractmethod
    def ops(self, name: str, *args: Operand, **attrs: Any) -> list[Expr]:
        """Emit an op that returns several tensors."""

    def reject(self, reason: str) -> NoReturn:
        """Give up on this node.

        Raises: RejectedError.
        """
        raise RejectedError(reason)

    # --- types --------------------------------------------------------------------------------------------------------
    def shape(self, expr: Expr) -> Shape:
        """Return the sizes of a tensor."""
        return expr.tensor_type.shape

    def dtype(self, expr: Expr) -> str:
        """Return the element type of a tensor."""
        return expr.tensor_type.dtype

    def rank(self, expr: Expr) -> int:
        """Return the number of axes of a tensor."""
        return expr.tensor_type.rank

    def operands(self, args: Sequence[Operand]) -> list[Expr]:
        """Return the operands of an op as tensors: numbers take the dtype of the first tensor."""
        dtype = next((self.dtype(arg) for arg in args if isinstance(arg, Expr)), "float32")
        return [self.expr(arg, dtype) for arg in args]

    # --- values -------------------------------------------------------------------------------------------------------
    def expr(self, operand: Operand, dtype: str) -> Expr:
        """Return an operand as a tensor; numbers and sizes have rank 0 and the dtype given."""
        if isinstance(operand, Expr):
            return operand
        if isinstance(operand, SymbolicDim):
            return self.cast(self.reshape(self.op("shape_tensor", dims=(operand,)), ()), dtype)
        return Constant(operand if isinstance(operand, np.ndarray) else np.asarray(operand, to_numpy(dtype)))

    def full(self, value: Operand, shape: Sequence[Dim], dtype: str) -> Expr:
        """Return a tensor with one value everywhere."""
        return self.broadcast_to(self.expr(value, dtype), shape)

    def neutral(self, reducer: str, dtype: str) -> float | int | bool:
        """Return the number that changes no "sum", "prod", "max" or "min"."""
        return neutral_element(reducer, dtype).value

    # --- views --------------------------------------------------------------------------------------------------------
    def reshape(self, expr: Expr, shape: Sequence[Dim]) -> Expr:
        """Give `expr` another shape."""
        wanted = tuple(shape)
        if self.shape(expr) == wanted:
            return expr
        if isinstance(expr, Constant) and all(isinstance(dim, int) for dim in wanted):
            return Constant(expr.data.reshape(wanted))  # pyright: ignore[reportArgumentType, reportCallIssue]
        return self.op("reshape", expr, shape=wanted)

    def permute(self, expr: Expr, axes: Sequence[int]) -> Expr:
        """Put the axes of `expr` in another order."""
        return expr if list(axes) == list(range(len(axes))) else self.op("permute_dims", expr, axes=tuple(axes))

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """Convert `expr` to another dtype."""
        return expr if self.dtype(expr) == dtype else self.op("astype", expr, dtype=dtype)

    def broadcast_to(self, expr: Expr, shape: Sequence[Dim]) -> Expr:
        """Repeat `expr` to a shape."""
        wanted = tuple(shape)
        return expr if self.shape(expr) == wanted else self.op("broadcast_to", expr, shape=wanted)

    def slice(self, expr: Expr, axis: int, begin: Dim, end: Dim, stride: int = 1) -> Expr:
        """Take `expr[begin:end:stride]` along an axis, bounds inside the axis."""
        if begin == 0 and stride == 1 and end == self.shape(expr)[axis]:
            return expr
        return self.op("strided_slice", expr, axes=(axis,), begin=(begin,), end=(end,), strides=(stride,))

    def along(self, expr: Expr, axis: int, rank: int) -> Expr:
        """Place a vector along one axis of a tensor of some rank, ones elsewhere."""
        shape: list[Dim] = [1] * rank
        shape[axis] = dims.product(self.shape(expr))
        return self.reshape(expr, shape)

    def select(self, expr: Expr, axis: int, index: Dim) -> Expr:
        """Take the part at one index of an axis, without that axis."""
        part = self.slice(expr, axis, index, index + 1)
        shape = self.shape(part)
        return self.reshape(part, (*shape[:axis], *shape[axis + 1 :]))

    def unsqueeze(self, expr: Expr, axis: int) -> Expr:
        """Give `expr` a new axis of size 1."""
        shape = self.shape(expr)
        return self.reshape(expr, (*shape[:axis], 1, *shape[axis:]))

    def concat(self, parts: Sequence[Expr], axis: int) -> Expr:
        """Join tensors along an axis."""
        return parts[0] if len(parts) == 1 else self.op("concat", *parts, axis=axis)

    def stack(self, parts: Sequence[Expr], axis: int) -> Expr:
        """Join tensors along a new axis."""
        return self.concat([self.unsqueeze(part, axis) for part in parts], axis)

    # --- compositions -------------------------------------------------------------------------------------------------
    def times_matrix(self, expr: Expr, axis: int, matrix: np.ndarray) -> Expr:
        """Multiply with a matrix (size, new size) along one axis."""
        order = [other for other in range(self.rank(expr)) if other != axis] + [axis]
        weights = np.ascontiguousarray(matrix.astype(to_numpy(self.dtype(expr))))
        product = self.op("matmul", self.permute(expr, order), weights)
        return self.permute(product, [order.index(each) for each in range(len(order))])

    def moments(self, expr: Expr, axes: Sequence[int]) -> tuple[Expr, Expr, Expr]:
        """Return the mean over axes, which are kept, the distances from it, and the mean of their squares."""
        mean = self.op("mean", expr, axes=tuple(axes), keepdims=True)
        distance = self.op("subtract", expr, mean)
        return mean, distance, self.op("mean", self.op("multiply", distance, distance), axes=tuple(axes), keepdims=True)

    def repeat_heads(self, expr: Expr, heads: Dim) -> Expr:
        """Repeat each head of (..., heads, rows, size) for every head of queries that shares it."""
        *batch, own, rows, size = self.shape(expr)
        if own == heads:
            return expr
        spread = self.reshape(expr, (*batch, own, 1, rows, size))
        spread = self.broadcast_to(spread, (*batch, own, dims.floordiv(heads, own), rows, size))
        return self.reshape(spread, (*batch, heads, rows, size))

    def places_of_maxima(self, expr: Expr, table: np.ndarray, names: np.ndarray) -> Expr:
        """Return the name of the largest element of each window of (batch, channels, sizes...) of known sizes.

        table: see `window_table`. names: of the same elements; of equal ones the first counts.
        """
        planes = self.reshape(expr, (*self.shape(expr)[:2], dims.product(self.shape(expr)[2:])))
        taken = self.op("take", planes, np.maximum(table, 0), axis=2)
        hidden = self.full(self.neutral("max", self.dtype(expr)), (), self.dtype(expr))
        shown = self.op("where", table >= 0, taken, hidden)
        largest = self.op("argmax", shown, axis=3)
        # A window of nothing but what hides the padding may choose a place of it, which stands for its first element.
        first = (table >= 0).argmax(axis=1)[:, None]
        inside = np.where(table >= 0, names, np.take_along_axis(names, first, axis=1))
        rows = np.arange(table.shape[0]) * table.shape[1]
        return self.op("take", inside.reshape(-1), self.op("add", largest, rows), axis=0)


def window_table(
    sizes: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    order: Literal["C", "F"] = "C",
) -> np.ndarray:
    """Return for each window (row) the places in a plane that it covers, -1 for padding.

    Example:
        >>> window_table((4,), (2,), (3,), (2,), (1,), (1,)).tolist()
        [[-1, 0, 1], [1, 2, 3]]
    """
    steps = [np.indices(kernel)[axis].reshape(1, -1) * each for axis, each in enumerate(dilation)]
    starts = [np.indices(out)[axis].reshape(-1, 1) * each for axis, each in enumerate(strides)]
    places = [start + step - pad for start, step, pad in zip(starts, steps, padding, strict=True)]
    inside = np.all([(at >= 0) & (at < size) for at, size in zip(places, sizes, strict=True)], axis=0)
    flat = np.ravel_multi_index([np.where(inside, at, 0) for at in places], tuple(sizes), order=order)
    return np.where(inside, flat, -1)
