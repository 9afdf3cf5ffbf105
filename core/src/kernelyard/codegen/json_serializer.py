"""JSONSerializer: writes regions as the JSON graphs that `kernelyard.runtime.modules.json_runtime` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelyard.dims import SymbolicDim
from kernelyard.errors import CodegenError
from kernelyard.ir import Call, Constant, Expr, Function, Op, Tuple, TupleGetItem, Type, Var
from kernelyard.ir.size_bounds import size_bounds
from kernelyard.ir.types import symbols_of, tensors_of
from kernelyard.patterns.composite import COMPOSITE, SINGLE_OP
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.modules.json_runtime import JSONGraph, JSONNode, NodeEntry
from kernelyard.transform.partition.region import Region


@dataclass(frozen=True)
class KernelNode:
    """A kernel of the library, made from one composite.

    op: the kernel's name in the backend's runtime. inputs: operands by role, each a parameter or constant of the
    composite (of an operator by itself: its arguments). attrs: plain values (bool, int, float, str, None, and tuples,
    lists and mappings of these).
    """

    op: str
    inputs: Sequence[tuple[str, Expr]]
    attrs: Mapping[str, Any] = field(default_factory=dict)


class JSONSerializer:
    """Turns regions into JSON graphs; a backend says what its composites, or operators by themselves, become.

    Example:
        >>> from kernelyard.patterns.composite import captured_operands
        >>> class AcmeSerializer(JSONSerializer):
        ...     def visit_composite(self, composite, call):
        ...         operands = captured_operands(composite)
        ...         return KernelNode("relu", [("x", operands["x"])])
    """

    def __init__(self) -> None:
        self.constants: dict[str, np.ndarray] = {}

    def visit_composite(self, composite: Function, call: Call) -> KernelNode:
        """Return the kernel for a composite; its outputs are those of `call`.

        Raises: CodegenError where a backend has none.
        """
        raise CodegenError(f"{type(self).__name__} has no kernel for a composite", found=composite.attrs[COMPOSITE])

    def visit_call(self, call: Call) -> KernelNode:
        """Return the kernel for an operator that is in a region by itself, as single-op rules put it there.

        Raises: CodegenError where a backend has none.
        """
        raise CodegenError(f"{type(self).__name__} has no kernel for an operator by itself", found=call.op_name)

    def visit_constant(self, constant: Constant, role: str, kernel: KernelNode) -> Constant:
        """Return the constant to store for a constant operand: itself, or for example weights in the order, or in
        the dtype, in which the kernel reads them; they are saved so.
        """
        return constant

    def serialize(self, region: Region) -> JSONGraph:
        """Return the region's graph; its constants are added to `self.constants` by digest.

        Raises: CodegenError for an operand that is neither parameter nor constant, or an attribute that is not plain.
        """
        return _GraphWriter(self, region).write()

    def serialize_all(self, regions: Sequence[Region]) -> list[JSONGraph]:
        """Return the graphs of several regions, in order."""
        return [self.serialize(region) for region in regions]


class _GraphWriter:
    def __init__(self, serializer: JSONSerializer, region: Region) -> None:
        self.serializer = serializer
        self.region = region
        self.nodes: list[JSONNode] = []
        self._entries: dict[Var, tuple[NodeEntry, ...]] = {}
        self._constants: dict[str, NodeEntry] = {}

    def write(self) -> JSONGraph:
        function = self.region.function
        inputs = tuple(_spec(param.type, param.name) for param in function.params)
        for index, param in enumerate(function.params):
            self._entries[param] = (self._add(JSONNode("input", (inputs[index],), index=index)),)
        for binding in function.bindings:
            self._entries[binding.var] = self._value(binding.value)
        symbols = symbols_of([param.type for param in function.params])
        bounds = {name: pair for name, pair in size_bounds(function).items() if name in symbols}
        return JSONGraph(self.region.symbol, inputs, tuple(self.nodes), self._operand(function.result), bounds)

    def _value(self, value: Expr) -> tuple[NodeEntry, ...]:
        if isinstance(value, TupleGetItem):
            return (self._operand(value.tuple_value)[value.index],)
        if isinstance(value, Call):
            return self._kernel(value)
        return self._operand(value)

    def _kernel(self, call: Call) -> tuple[NodeEntry, ...]:
        given: dict[Expr, Expr] = {}
        if isinstance(call.op, Op):
            kernel = self.serializer.visit_call(call)
        else:
            composite = self.region.composite(call)
            kernel = self._kernel_of(composite, call)
            given.update(zip(composite.params, call.args, strict=True))
        inputs: list[tuple[str, NodeEntry]] = []
        for role, operand in kernel.inputs:
            entries = self._operand(self._visit_operand(given.get(operand, operand), role, kernel))
            inputs.append((role, entries[0]))
        outputs = tuple(_spec(tensor) for tensor in tensors_of(call.type))
        attrs = {name: plain(item, f"{kernel.op}.{name}") for name, item in kernel.attrs.items()}
        number, _ = self._add(JSONNode("kernel", outputs, kernel.op, tuple(inputs), attrs))
        return tuple((number, output) for output in range(len(outputs)))

    def _kernel_of(self, composite: Function, call: Call) -> KernelNode:
        if not composite.attrs.get(SINGLE_OP):
            return self.serializer.visit_composite(composite, call)
        (binding,) = composite.bindings
        assert isinstance(binding.value, Call)
        return self.serializer.visit_call(binding.value)

    def _visit_operand(self, operand: Expr, role: str, kernel: KernelNode) -> Expr:
        if not isinstance(operand, Constant):
            return operand
        constant = self.serializer.visit_constant(operand, role, kernel)
        if not isinstance(constant, Constant):
            raise CodegenError(
                f"the serializer has no constant for the operand {role!r} of {kernel.op!r}",
                where=f"region {self.region.symbol}",
                found=type(constant).__name__,
                expected="Constant",
            )
        return constant

    def _operand(self, expr: Expr) -> tuple[NodeEntry, ...]:
        if isinstance(expr, Tuple):
            return tuple(entry for item in expr.fields for entry in self._operand(item))
        if isinstance(expr, Constant):
            return (self._constant(expr),)
        if isinstance(expr, Var) and expr in self._entries:
            return self._entries[expr]
        raise CodegenError(
            "a kernel's operand is neither a parameter nor a constant of its composite",
            where=f"region {self.region.symbol}",
            found=repr(expr),
        )

    def _constant(self, constant: Constant) -> NodeEntry:
        if constant.digest not in self._constants:
            self.serializer.constants[constant.digest] = constant.data
            node = JSONNode("constant", (_spec(constant.type),), digest=constant.digest)
            self._constants[constant.digest] = self._add(node)
        return self._constants[constant.digest]

    def _add(self, node: JSONNode) -> NodeEntry:
        self.nodes.append(node)
        return len(self.nodes) - 1, 0


def _spec(type_: Type, name: str = "") -> TensorSpec:
    (tensor,) = tensors_of(type_)
    return TensorSpec(tensor.shape, tensor.dtype, name)


def plain(value: Any, where: str) -> Any:
    """Return a value as JSON data: tuples become lists, symbolic dims their text.

    Raises: CodegenError for anything that JSON cannot hold.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, SymbolicDim):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where) for item in value]
    raise CodegenError("an attribute of a kernel is not plain data", where=where, found=repr(value))
