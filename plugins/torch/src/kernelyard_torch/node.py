"""Node: what a converter sees of one node of a graph, and the means to emit ops for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch.fx import Node as FxNode

from kernelyard import dims
from kernelyard.dims import Dim, Shape, SymbolicDim
from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Call, Constant, Expr, TensorType, TupleType, Type, get_op
from kernelyard_torch.complex_numbers import is_complex
from kernelyard_torch.tensors import DTYPES

if TYPE_CHECKING:
    from kernelyard_torch.importer import GraphImporter

Scalar: TypeAlias = "int | float | bool | SymbolicDim"
Operand: TypeAlias = "Expr | np.ndarray | Scalar"
# Arguments that say where or how a result is stored, which does not change its value.
STORAGE = frozenset({"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking"})
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH_FOLDER = torch.__path__[0]


class RejectedError(Exception):
    """A node cannot be expressed; the importer collects these and reports all of them. Never leaves this package."""


class Node:
    """One node that calls an operator. `results` are the types that torch gives its tensors, None for what is none."""

    def __init__(self, fx_node: FxNode, importer: GraphImporter) -> None:
        self.fx_node = fx_node
        self.importer = importer
        self.builder = importer.builder
        self.origin = origin_of(fx_node)

    @property
    def results(self) -> list[TensorType | None]:
        """The types of what the node gives, as torch knows them; of the parts of complex tensors.

        Raises: RejectedError for other element types.
        """
        value = self.fx_node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else [value]
        type_of = self.importer.shared.type_of
        return [type_of(item, parts=True) if isinstance(item, torch.Tensor) else None for item in values]

    @property
    def gives_complex(self) -> bool:
        """Whether the first result is complex."""
        value = self.fx_node.meta.get("val")
        return is_complex(value[0] if isinstance(value, (tuple, list)) else value)

    @property
    def result(self) -> TensorType:
        """The type of the first result. Raises: RejectedError."""
        first = self.results[0]
        return self.reject("it gives no tensor") if first is None else first

    def is_used(self, index: int) -> bool:
        """Whether anything reads one of several results."""
        return any(user.args[1] == index for user in self.fx_node.users if user.users and len(user.args) > 1)

    def reject(self, reason: str) -> NoReturn:
        """Give up on this node. Raises: RejectedError."""
        raise RejectedError(reason)

    # --- types --------------------------------------------------------------------------------------------------------
    def shape(self, expr: Expr) -> Shape:
        """The sizes of a tensor."""
        return expr.tensor_type.shape

    def dtype(self, expr: Expr) -> str:
        """The element type of a tensor."""
        return expr.tensor_type.dtype

    def rank(self, expr: Expr) -> int:
        """The number of axes of a tensor."""
        return expr.tensor_type.rank

    def axis(self, value: int, rank: int) -> int:
        """An axis counted from the front."""
        return value % rank if rank else 0

    def axes(self, values: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
        """Axes counted from the front, ascending; none given are all."""
        if isinstance(values, int):
            values = [values]
        if not rank:
            return ()
        return tuple(sorted(self.axis(value, rank) for value in values)) if values else tuple(range(rank))

    def fixed(self, size: Dim, what: str) -> int:
        """A size that must be known when the program is compiled. Raises: RejectedError."""
        return size if isinstance(size, int) else self.reject(f"{what} is not fixed: {size}")

    def fixed_all(self, sizes: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Sizes that must be known when the program is compiled. Raises: RejectedError."""
        return tuple(self.fixed(size, what) for size in sizes)

    # --- emitting -----------------------------------------------------------------------------------------------------
    def op(self, name: str, *args: Operand, **attrs: Any) -> Expr:
        """The result of an op. Numbers take the dtype of the first tensor.

        Raises: TypeInferenceError, AttributeTypeError.
        """
        return self.builder.bind(self._call(name, args, attrs), name.rsplit(".", 1)[-1], self.origin)

    def ops(self, name: str, *args: Operand, **attrs: Any) -> list[Expr]:
        """The results of an op that gives several. Raises: TypeInferenceError, AttributeTypeError."""
        call = self._call(name, args, attrs)
        assert isinstance(call.type, TupleType)
        whole = self.builder.bind(call, name, self.origin)
        return [self.builder.get(whole, index) for index in range(len(call.type.fields))]

    def decided(self, name: str, *args: Expr, type_: Type, **attrs: Any) -> Expr:
        """The result of an op that decides the sizes of its result, which are stated."""
        return self.builder.bind(Call(get_op(name), args, attrs, type_), name, self.origin)

    def _call(self, name: str, args: Sequence[Operand], attrs: dict[str, Any]) -> Call:
        dtype = next((self.dtype(arg) for arg in args if isinstance(arg, Expr)), "float32")
        return Call(get_op(name), [self.expr(arg, dtype) for arg in args], attrs)

    def expr(self, operand: Operand, dtype: str) -> Expr:
        """An operand as a tensor; numbers have rank 0 and the dtype given."""
        if isinstance(operand, Expr):
            return operand
        if isinstance(operand, SymbolicDim):
            return self.cast(self.reshape(self.op("shape_tensor", dims=(operand,)), ()), dtype)
        return Constant(operand if isinstance(operand, np.ndarray) else np.asarray(operand).astype(to_numpy(dtype)))

    def reshape(self, expr: Expr, shape: Sequence[Dim]) -> Expr:
        """`expr` in another shape; itself when it has that shape."""
        wanted = tuple(shape)
        return expr if self.shape(expr) == wanted else self.op("reshape", expr, shape=wanted)

    def permute(self, expr: Expr, axes: Sequence[int]) -> Expr:
        """`expr` with its axes in another order; itself when the order is the same."""
        return expr if list(axes) == list(range(len(axes))) else self.op("permute_dims", expr, axes=tuple(axes))

    def to_front(self, expr: Expr, axes: Sequence[int]) -> Expr:
        """`expr` with some axes first, the others behind them in their order."""
        rest = [axis for axis in range(self.rank(expr)) if axis not in axes]
        return self.permute(expr, [*axes, *rest])

    def from_front(self, expr: Expr, axes: Sequence[int]) -> Expr:
        """The inverse of `to_front`."""
        order = [*axes, *(axis for axis in range(self.rank(expr)) if axis not in axes)]
        return self.permute(expr, [order.index(axis) for axis in range(len(order))])

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """`expr` as another dtype; itself when it has it."""
        return expr if self.dtype(expr) == dtype else self.op("astype", expr, dtype=dtype)

    def broadcast_to(self, expr: Expr, shape: Sequence[Dim]) -> Expr:
        """`expr` repeated to a shape; itself when it has that shape."""
        wanted = tuple(shape)
        return expr if self.shape(expr) == wanted else self.op("broadcast_to", expr, shape=wanted)

    def full(self, value: Operand, shape: Sequence[Dim], dtype: str) -> Expr:
        """A tensor with one value everywhere."""
        return self.broadcast_to(self.expr(value, dtype), shape)

    def slice(self, expr: Expr, axis: int, begin: Dim, end: Dim, stride: int = 1) -> Expr:
        """`expr[begin:end:stride]` along an axis, bounds inside the axis."""
        if begin == 0 and stride == 1 and end == self.shape(expr)[axis]:
            return expr
        return self.op("strided_slice", expr, axes=(axis,), begin=(begin,), end=(end,), strides=(stride,))

    def along(self, expr: Expr, axis: int, rank: int) -> Expr:
        """A vector placed along one axis of a tensor of some rank, ones elsewhere."""
        shape: list[Dim] = [1] * rank
        shape[axis] = dims.product(self.shape(expr))
        return self.reshape(expr, shape)

    def flat(self, expr: Expr) -> Expr:
        """All elements as a vector."""
        return self.reshape(expr, (expr.tensor_type.numel,))


def origin_of(fx_node: FxNode) -> str:
    """How messages name a node."""
    return f"node {fx_node.name!r} ({fx_node.target})"


def source_of(fx_node: FxNode) -> str:
    """The line of the model's source that a node comes from, as "model.py:13"; empty where it is not known."""
    frames = _FRAME.findall(fx_node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith((_TORCH_FOLDER, "torch/", "<"))] or frames
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else ""


def dtype_of(dtype: torch.dtype) -> str:
    """Our name of an element type. Raises: RejectedError."""
    if dtype not in DTYPES:
        raise RejectedError(f"{dtype} is no element type of a program")
    return DTYPES[dtype]
