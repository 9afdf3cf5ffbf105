"""Node: what a converter sees of one node of a graph, and the means to emit ops for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.fx import Node as FxNode

from kernelyard.dims import Dim
from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Call, Expr, OpEmitter, Operand, RejectedError, TensorType, TupleType, Type, get_op
from kernelyard_torch.complex_numbers import is_complex
from kernelyard_torch.tensors import DTYPES

if TYPE_CHECKING:
    from kernelyard_torch.importer import GraphImporter

# Arguments that say where or how a result is stored, which does not change its value.
STORAGE = frozenset({"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking"})
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH_FOLDER = torch.__path__[0]


class Node(OpEmitter):
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
        """True if the first result is complex."""
        value = self.fx_node.meta.get("val")
        return is_complex(value[0] if isinstance(value, (tuple, list)) else value)

    @property
    def result(self) -> TensorType:
        """The type of the first result. Raises: RejectedError."""
        first = self.results[0]
        return self.reject("its result is not a tensor") if first is None else first

    def is_used(self, index: int) -> bool:
        """Return True if one of several results has a user."""
        return any(user.args[1] == index for user in self.fx_node.users if user.users and len(user.args) > 1)

    # --- types --------------------------------------------------------------------------------------------------------
    def axis(self, value: int, rank: int) -> int:
        """Return an axis counted from the front."""
        return value % rank if rank else 0

    def axes(self, values: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
        """Return axes counted from the front, ascending; all if none are given."""
        if isinstance(values, int):
            values = [values]
        if not rank:
            return ()
        return tuple(sorted(self.axis(value, rank) for value in values)) if values else tuple(range(rank))

    def require_fixed(self, size: Dim, what: str) -> int:
        """Return a size that must be known when the program is compiled. Raises: RejectedError."""
        return size if isinstance(size, int) else self.reject(f"{what} is not fixed: {size}")

    def require_all_fixed(self, sizes: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Return sizes that must be known when the program is compiled. Raises: RejectedError."""
        return tuple(self.require_fixed(size, what) for size in sizes)

    # --- emitting -----------------------------------------------------------------------------------------------------
    def op(self, name: str, *args: Operand, **attrs: Any) -> Expr:
        """Return the result of an op. Numbers take the dtype of the first tensor.

        Raises: TypeInferenceError, AttributeTypeError.
        """
        return self.builder.bind(self._call(name, args, attrs), name.rsplit(".", 1)[-1], self.origin)

    def ops(self, name: str, *args: Operand, **attrs: Any) -> list[Expr]:
        """Return the results of an op that gives several. Raises: TypeInferenceError, AttributeTypeError."""
        call = self._call(name, args, attrs)
        assert isinstance(call.type, TupleType)
        whole = self.builder.bind(call, name, self.origin)
        return [self.builder.get(whole, index) for index in range(len(call.type.fields))]

    def expr(self, operand: Operand, dtype: str) -> Expr:
        """See `OpEmitter.expr`; integers wrap around, as PyTorch's do."""
        is_number = isinstance(operand, (bool, int, float))
        return super().expr(np.asarray(operand).astype(to_numpy(dtype)) if is_number else operand, dtype)

    def emit_data_dependent(self, name: str, *args: Expr, type_: Type, **attrs: Any) -> Expr:
        """Emit an operator the sizes of whose result depend on data: they are those of the type."""
        return self.builder.bind(Call(get_op(name), args, attrs, type_), name, self.origin)

    def _call(self, name: str, args: Sequence[Operand], attrs: dict[str, Any]) -> Call:
        return Call(get_op(name), self.operands(args), attrs)

    def to_front(self, expr: Expr, axes: Sequence[int]) -> Expr:
        """`expr` with some axes first, the others behind them in their order."""
        rest = [axis for axis in range(self.rank(expr)) if axis not in axes]
        return self.permute(expr, [*axes, *rest])

    def from_front(self, expr: Expr, axes: Sequence[int]) -> Expr:
        """Return the inverse of `to_front`."""
        order = [*axes, *(axis for axis in range(self.rank(expr)) if axis not in axes)]
        return self.permute(expr, [order.index(axis) for axis in range(len(order))])

    def times(self, expr: Expr, axis: int, matrix: Expr) -> Expr:
        """Multiply with a matrix (size, new size) of the same dtype along one axis; constants: see `times_matrix`."""
        order = [other for other in range(self.rank(expr)) if other != axis] + [axis]
        product = self.op("matmul", self.permute(expr, order), matrix)
        return self.permute(product, [order.index(each) for each in range(len(order))])

    def flat(self, expr: Expr) -> Expr:
        """Return all elements as a vector."""
        return self.reshape(expr, (expr.tensor_type.numel,))


def origin_of(fx_node: FxNode) -> str:
    """Return the name of a node in messages."""
    return f"node {fx_node.name!r} ({fx_node.target})"


def source_of(fx_node: FxNode) -> str:
    """Return the line of the model's source that a node comes from, as "model.py:13"; empty where it is not known."""
    frames = _FRAME.findall(fx_node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith((_TORCH_FOLDER, "torch/", "<"))] or frames
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else ""


def dtype_of(dtype: torch.dtype) -> str:
    """Our name of an element type. Raises: RejectedError."""
    if dtype not in DTYPES:
        raise RejectedError(f"{dtype} is not a supported element type")
    return DTYPES[dtype]
