"""Node: what a converter sees of one ONNX node, and the means to emit ops for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
import onnx
from onnx import helper

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr, OpEmitter, Operand
from kernelyard_onnx.bounds import is_cut_of, settle
from kernelyard_onnx.graph_builder import GraphBuilder
from kernelyard_onnx.undecided import UndecidedNodeError
from kernelyard_onnx.values import TensorSequence, Value

if TYPE_CHECKING:
    from kernelyard_onnx.importer import Importer
    from kernelyard_onnx.scope import Scope

Default = TypeVar("Default")
# Tensors that are computed while the model is read: larger ones would be better computed at run time.
MAX_COMPUTED = 2**26


class Node(OpEmitter):
    """One node: inputs as expressions, attributes as Python values, and `op` to emit.

    Left-out optional inputs are None. `opset` is the version of the node's domain.
    """

    def __init__(
        self,
        proto: onnx.NodeProto,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, Any],
        opset: int,
        importer: Importer,
        scope: Scope,
    ) -> None:
        self.proto = proto
        self.inputs = inputs
        self.attributes = attributes
        self.opset = opset
        self.importer = importer
        self.scope = scope
        self.builder: GraphBuilder = importer.builder
        self.origin = origin_of(proto)
        self.label = re.sub(r"\W+", "_", proto.name or proto.op_type.lower()).strip("_") or "node"

    # --- reading --------------------------------------------------------------------------------------------------
    def input(self, index: int) -> Expr:
        """Return a required input.

        Raises: RejectedError.
        """
        value = self.optional(index)
        return self.reject(f"its input {index} is missing") if value is None else value

    def optional(self, index: int) -> Expr | None:
        """Return an optional input, or None.

        Raises: RejectedError when it is no tensor.
        """
        value = self.value(index)
        if value is None or isinstance(value, Expr):
            return value
        return self.reject(f"its input {index} is not a tensor")

    def value(self, index: int) -> Value | None:
        """Return an input of any kind, or None when it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def sequence(self, index: int) -> TensorSequence:
        """Return an input that must be a sequence.

        Raises: RejectedError.
        """
        value = self.value(index)
        return value if isinstance(value, TensorSequence) else self.reject(f"its input {index} is not a sequence")

    def require_inputs(self) -> list[Expr]:
        """Return all inputs, none of which may be left out."""
        return [self.input(index) for index in range(len(self.inputs))]

    def attr(self, name: str, default: Default = None) -> Default | Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, default)

    def require_attr(self, name: str) -> Any:
        """Return an attribute that must be there.

        Raises: RejectedError.
        """
        return self.attributes[name] if name in self.attributes else self.reject(f"its attribute {name!r} is missing")

    def has_output(self, index: int) -> bool:
        """Return True when the model names this output."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def reject_undecided(self, reason: str, *values: Expr) -> NoReturn:
        """Give up on this node, because values are not known that the model's inputs decide.

        Raises: RejectedError.
        """
        inputs = frozenset().union(*map(self.builder.inputs_of, values))
        raise UndecidedNodeError(reason, inputs, self.names_of(values))

    def names_of(self, values: Sequence[Expr]) -> frozenset[str]:
        """Return the names of inputs of this node in the model's graph; none inside of other graphs and functions."""
        named = zip(self.proto.input, self.inputs, strict=False)
        return frozenset(name for name, value in named if value in values and not self.scope.depth)

    def like(self, op_type: str, inputs: Sequence[Value | None], **attributes: Any) -> Node:
        """Return a node of the standard with these inputs, this node's outputs, and its attributes where none are
        given.
        """
        proto = onnx.NodeProto(op_type=op_type, name=self.proto.name, output=self.proto.output)
        return Node(proto, inputs, {**self.attributes, **attributes}, self.opset, self.importer, self.scope)

    def by_standard(
        self, op_type: str, opset: int, inputs: Sequence[Value | None], attributes: Mapping[str, Any]
    ) -> Sequence[Value | None]:
        """Convert an operator of the standard, which defines it by others, with these inputs and this node's outputs.

        Raises: RejectedError.
        """
        names = [f"input_{index}" if value is not None else "" for index, value in enumerate(inputs)]
        proto = helper.make_node(op_type, names, self.proto.output, self.proto.name, **attributes)
        return self.importer.run_standard_function(proto, inputs, opset, self.scope)

    # --- types and values -----------------------------------------------------------------------------------------
    def axis(self, value: int, rank: int) -> int:
        """Return an axis counted from the front.

        Raises: RejectedError when it is out of range.
        """
        if not -rank <= value < rank:
            self.reject(f"its axis {value} is out of range for {rank} dimensions")
        return value % rank if rank else 0

    def axes(self, values: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return axes counted from the front, in the order given."""
        return tuple(self.axis(int(value), rank) for value in values)

    def constant(self, expr: Expr, what: str) -> np.ndarray:
        """Return the value of an expression that must be known when the model is compiled.

        Raises: RejectedError.
        """
        value = self.builder.known.constant(expr)
        return self.reject_undecided(f"its {what} is not a constant", expr) if value is None else value

    def ints(self, expr: Expr, what: str) -> tuple[int, ...]:
        """Return a constant vector of whole numbers."""
        return tuple(int(item) for item in self.constant(expr, what).reshape(-1))

    def attr_or_input(self, name: str, index: int) -> tuple[int, ...] | None:
        """Whole numbers that older opsets have as an attribute and newer ones as an input; None where left out."""
        given = self.optional(index)
        return self.attr(name) if given is None else self.ints(given, name)

    def scalar(self, expr: Expr, what: str) -> Any:
        """Return a constant number, as a Python number."""
        value = self.constant(expr, what)
        return value.reshape(-1)[0].item() if value.size == 1 else self.reject(f"its {what} is not one number")

    def require_fixed(self, dim: Dim, what: str) -> int:
        """Return a size that must be a number.

        Raises: RejectedError.
        """
        return dim if isinstance(dim, int) else self.reject(f"the {what} is not fixed")

    def affordable(self, count: int, what: str) -> int:
        """Return a number of elements that is computed now, and must not be absurd.

        Raises: RejectedError.
        """
        return count if count <= MAX_COMPUTED else self.reject(f"its {what} would have {count} elements")

    def dims(self, expr: Expr, what: str) -> tuple[Dim, ...]:
        """Return a vector of whole numbers that are constants or computed from sizes.

        Raises: RejectedError when the numbers come from data.
        """
        value = self.builder.known.dims(expr)
        return self.reject_undecided(f"its {what} depends on data", expr) if value is None else value

    def sizes(self, expr: Expr, what: str) -> tuple[Dim, ...]:
        """Return a vector of sizes: constants, computed from sizes, or known when the program runs.

        Raises: RejectedError when their number is not fixed.
        """
        known = self.builder.known.dims(expr)
        if known is not None:
            return known
        count = self.require_fixed(dims.product(self.shape(expr)), f"number of elements of its {what}")
        vector = self.cast(self.reshape(expr, (count,)), "int64")
        return self.builder.sizes(vector, self.new_size, self.origin)

    def new_size(self) -> Dim:
        """Return a size that is known when the program runs, and may be zero."""
        return self.importer.symbols.fresh(self.label) - 1

    def numbers(self, sizes: Sequence[Dim]) -> Expr:
        """Return sizes as an int64 vector."""
        return self.op("shape_tensor", dims=tuple(sizes))

    # --- narrow element types -------------------------------------------------------------------------------------
    def wide(self, expr: Expr) -> Expr:
        """Return the numbers of a tensor whose element type may be narrow, as those of the type that carries it."""
        if expr not in self.importer.element_types:
            return expr
        return self.op("reshape", expr, shape=self.shape(expr))

    def mark_narrow(self, expr: Expr, data_type: int) -> Expr:
        """Record that a tensor carries numbers of a narrow element type, and return it."""
        self.importer.element_types[expr] = data_type
        return expr

    # --- emitting -------------------------------------------------------------------------------------------------
    def op(self, name: str, *args: Operand, **attrs: Any) -> Expr:
        """See `OpEmitter.op`."""
        (result,) = self.ops(name, *args, **attrs)
        return result

    def ops(self, name: str, *args: Operand, **attrs: Any) -> list[Expr]:
        """Emit an op that returns several tensors."""
        return self.builder.emit(name, self.operands(args), attrs, self.origin)

    def broadcast(self, name: str, *args: Operand) -> Expr:
        """Emit an elementwise op of several operands under NumPy's broadcasting.

        Where a size is cut (`min(n, 512)`, from slicing a table) and meets the whole (`n`), the op is only possible
        when both are the same, and the cut operand is given the size of the other: shapes stay readable, and the run
        time checks the reshape.
        """
        operands = [arg for arg in args if isinstance(arg, Expr)]
        aligned = {id(arg): self._align(arg, operands) for arg in operands}
        result = self.op(name, *(aligned.get(id(arg), arg) for arg in args))
        return self.reshape(result, tuple(settle(dim) for dim in self.shape(result)))

    def _align(self, operand: Expr, operands: Sequence[Expr]) -> Expr:
        shape = list(self.shape(operand))
        if all(isinstance(dim, int) for dim in shape):
            return operand
        for other in operands:
            for back in range(1, min(len(shape), self.rank(other)) + 1):
                whole = self.shape(other)[-back]
                if is_cut_of(shape[-back], whole):
                    shape[-back] = whole
        return self.reshape(operand, shape)


def origin_of(proto: onnx.NodeProto) -> str:
    """Return the name of a node in messages: its own, or that of its first output if it has none."""
    label = repr(proto.name) if proto.name else f"that makes {next(iter(proto.output), '')!r}"
    return f"node {label} ({proto.op_type})"
