"""GraphImporter: walks the nodes of one graph and emits the ops of our vocabulary for each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule
from torch.fx import Node as FxNode

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.errors import IRError, ModelFormatError, ShapeError, UnsupportedOperatorError
from kernelyard.plugins.api import (
    PRIVATE,
    Constant,
    Expr,
    FreshNames,
    Function,
    FunctionBuilder,
    Problem,
    RejectedError,
    TensorType,
    unsupported,
)
from kernelyard_torch import converters, registry
from kernelyard_torch.complex_numbers import PARTS, Complex, takes_part
from kernelyard_torch.node import STORAGE, Node, dtype_of, origin_of, source_of
from kernelyard_torch.sizes import NotASizeError, Sizes
from kernelyard_torch.symbolic_numbers import number
from kernelyard_torch.tensors import to_array

Value: TypeAlias = "Expr | Complex | Sequence[Expr | Complex | None] | None"
MAIN = "main"
NO_CONVERTER = "there is no converter for it"
# What only asserts or annotates: sizes are checked when a program runs.
IGNORED = frozenset(
    {
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
LOCAL_SCALAR = "aten._local_scalar_dense.default"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
converters.load()


@dataclass
class Shared:
    """State shared by the graphs of one program."""

    sizes: Sizes
    private: dict[str, Function] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    scalars: dict[sympy.Symbol, Expr] = field(default_factory=dict)
    _constants: dict[tuple[Any, ...], Constant] = field(default_factory=dict)
    _names: FreshNames = field(default_factory=lambda: FreshNames([MAIN]))

    def type_of(self, tensor: torch.Tensor, parts: bool = False) -> TensorType:
        """Return the type of a (fake) tensor, or of the parts of complex ones.

        Raises: RejectedError for element types and layouts that we do not have.
        """
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise RejectedError(f"tensors of layout {tensor.layout} are not supported")
        try:
            dtype = PARTS.get(tensor.dtype, tensor.dtype) if parts else tensor.dtype
            return TensorType(self.sizes.shape(tensor), dtype_of(dtype))
        except NotASizeError as error:
            raise RejectedError(f"the size of its result is not supported: {error}") from error

    def constant(self, tensor: torch.Tensor) -> Constant | Complex:
        """Return the constant of a weight: a view of it, and one for all names of the same weight."""
        if tensor.dtype.is_complex:
            with unset_fake_temporarily():
                parts = torch.view_as_real(tensor.resolve_conj()).unbind(-1)
                return Complex(*(Constant(to_array(part.contiguous())) for part in parts))
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if key not in self._constants or not tensor.numel():
            with unset_fake_temporarily():  # TorchDynamo calls backends where all tensors are to be fake
                self._constants[key] = Constant(to_array(tensor))
        return self._constants[key]

    def add_private(self, wanted: str, function: Function) -> str:
        """Add a function that only the program's own functions call; its name."""
        name = self._names.unique(wanted)
        self.private[name] = function
        return name

    def check(self) -> None:
        """Check that all nodes were converted. Raises: UnsupportedOperatorError that lists those that were not."""
        if self.problems:
            hint = "write the model without these, or compile with torch.compile(model, backend='kernelyard'), which "
            hint += "leaves such parts to PyTorch"
            raise UnsupportedOperatorError(**unsupported("program", self.problems), hint=hint)


class GraphImporter:
    """Imports one graph: give each placeholder with `feed`, then `run`, then take `results`.

    is_strict: a node that does not fit its inputs is an error, not one that cannot be expressed. rejected: nodes that
    cannot be expressed by themselves.
    """

    def __init__(self, graph_module: GraphModule, shared: Shared, is_strict: bool = True) -> None:
        self.module = graph_module
        self.shared = shared
        self.builder = FunctionBuilder()
        self._values: dict[FxNode, Value] = {}
        self._failed: set[FxNode] = set()
        self._is_strict = is_strict
        self.rejected: set[FxNode] = set()

    def create_nested(self, graph_module: GraphModule) -> GraphImporter:
        """Return the importer of a graph that a node of this one calls."""
        return GraphImporter(graph_module, self.shared)

    @property
    def placeholders(self) -> list[FxNode]:
        """The inputs of the graph, in order."""
        return [node for node in self.module.graph.nodes if node.op == "placeholder"]

    def feed(self, node: FxNode, value: Expr | Complex) -> None:
        """Say what an input of the graph is, or another node, which is not converted then."""
        self._values[node] = value

    def fail(self, node: FxNode, reason: str) -> None:
        """Note that a node cannot be expressed; those that read it are passed over."""
        self._failed.add(node)
        if reason:
            self.rejected.add(node)
            source = source_of(node)
            origin = f"{node.name!r} at {source}" if source else repr(node.name)
            self.shared.problems.append(Problem(str(node.target), origin, reason))

    def run(self) -> None:
        """Convert all nodes. Raises: ModelFormatError when one does not fit its inputs."""
        for node in self.module.graph.nodes:
            if node.op == "get_attr":
                self._get_attribute(node)
            elif node.op == "call_function":
                self._run_node(node)
            elif node.op not in ("placeholder", "output"):
                self.fail(node, f"an ATen graph cannot contain {node.op!r}")

    def outputs(self) -> list[Any]:
        """Return the arguments of the graph's output node, flattened."""
        (output,) = (node for node in self.module.graph.nodes if node.op == "output")
        given = output.args[0]
        return list(given) if isinstance(given, (tuple, list)) else [given]

    def tensor(self, given: Any) -> Expr | None:
        """Return an argument as one tensor: sizes as int64 of rank 0; None where it cannot be expressed or is none."""
        value = self.result(given)
        if isinstance(value, Complex):
            self.fail(given, "a result must be real, but is complex: return torch.view_as_real of it")
            return None
        return value

    def result(self, given: Any) -> Expr | Complex | None:
        """Return an argument likewise, where complex tensors may be results."""
        if isinstance(given, FxNode) and given in self._failed:
            return None
        value = self.resolve(given)
        if value is None or isinstance(value, (Expr, Complex)):
            return value
        kind = {bool: "bool", float: "float64"}.get(type(value), "int64")
        return Node(given, self).expr(value, kind) if isinstance(given, FxNode) else Constant(value)

    def decide(self, size: torch.SymInt, vector: Expr, node: Node) -> None:
        """Let a size that data decides be the one element of an int64 vector."""
        dim = self.shared.sizes.dim(size)
        node.emit_data_dependent("tensor_to_shape", vector, type_=TensorType((dim,), "bool"))

    def mask_size(self, node: Node, others: Sequence[Sequence[Any]]) -> Any:
        """Return the number of a mask's true elements: the size of the node's result that its inputs do not have."""
        known = {size for shape in others for size in shape}
        given = [a for a in node.fx_node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]
        known |= {size for a in given for size in self.shared.sizes.shape(a.meta["val"])}
        new = [size for size in node.result.shape if size not in known]
        return new[0] if new else self.shared.sizes.fresh("selected") - 1

    def function(self, results: Sequence[Expr]) -> Function:
        """Return the private function that this graph is."""
        return self.builder.function(*results, attrs={PRIVATE: True})

    # --- nodes --------------------------------------------------------------------------------------------------------
    def _get_attribute(self, node: FxNode) -> None:
        value: Any = operator.attrgetter(str(node.target))(self.module)
        if isinstance(value, torch.Tensor):
            try:
                self._values[node] = self.shared.constant(value)
            except TypeError as error:
                self.fail(node, str(error))

    def _run_node(self, node: FxNode) -> None:
        name = str(node.target)
        is_size = isinstance(node.meta.get("val"), _SYMBOLIC) and name != LOCAL_SCALAR  # read where it is used
        if is_size or name in IGNORED or node in self._values:
            return
        convert = operator.getitem if node.target is operator.getitem else registry.find(node.target, takes_part(node))
        failed = any(read in self._failed for read in node.all_input_nodes)
        if convert is None or failed:
            self.fail(node, NO_CONVERTER if convert is None else "")
            return
        try:
            if node.target is operator.getitem:
                self._values[node] = self.resolve(node.args[0])[node.args[1]]
            else:
                value = self._convert(node, convert)
                if name != LOCAL_SCALAR:  # which is read where it is used, as sizes are
                    self._values[node] = value
        except RejectedError as rejected:
            self.fail(node, str(rejected))
        except (IRError, ShapeError, ModelFormatError) as error:
            self._note_misfit(node, error)

    def _note_misfit(self, node: FxNode, error: IRError | ShapeError | ModelFormatError) -> None:
        if not self._is_strict:
            self.fail(node, error.message)
            return
        raise error if isinstance(error, ModelFormatError) else _misfit(node, error) from error

    def _convert(self, fx_node: FxNode, convert: Callable[..., Any]) -> Value:
        node = Node(fx_node, self)
        given = convert(node, *self._arguments(fx_node))
        types = node.results
        several = isinstance(fx_node.meta.get("val"), (tuple, list))
        results = list(given) if isinstance(given, (tuple, list)) else [given]
        fitted = [_fit(node, result, type_) for result, type_ in zip(results, types, strict=False)]
        return fitted if several else fitted[0]

    def _arguments(self, node: FxNode) -> list[Any]:
        """Return all arguments of the operator's schema, in order, defaults filled in."""
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return [self.resolve(arg) for arg in node.args]
        given: list[Any] = []
        for position, argument in enumerate(target._schema.arguments):
            default = argument.default_value if argument.has_default_value() else None
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name, default)
            if argument.name not in STORAGE:
                given.append(self.resolve(value))
        return given

    def resolve(self, value: Any) -> Any:
        """Return an argument as converters see it. Raises: RejectedError."""
        if isinstance(value, FxNode):
            return self._value_of(value)
        if isinstance(value, (list, tuple)):
            return [self.resolve(item) for item in value]
        return dtype_of(PARTS.get(value, value)) if isinstance(value, torch.dtype) else value

    def _value_of(self, node: FxNode) -> Any:
        if node in self._values:
            return self._values[node]
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.module)  # the graph of a branch or loop
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            try:
                return self.shared.sizes.dim(value)
            except NotASizeError:
                pass
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._values[node] = number(Node(node, self), value.node.expr)
            return self._values[node]
        return value


def _fit(node: Node, result: Expr | Complex | None, type_: TensorType | None) -> Expr | Complex | None:
    """Return a result as torch knows it: its dtype, and sizes that torch knows to be equal."""
    if result is None or type_ is None:
        return result
    if isinstance(result, Complex):
        return result.map(lambda part: _fit_result(node, part, type_))
    return _fit_result(node, result, type_)


def _fit_result(node: Node, result: Expr, type_: TensorType) -> Expr:
    if result.tensor_type.rank != type_.rank:
        raise ModelFormatError(
            "a node's result has another rank than its metadata states",
            where=node.origin,
            found=repr(result.type),
            expected=repr(type_),
        )
    return node.reshape(node.cast(result, type_.dtype), type_.shape)


def _misfit(node: FxNode, error: IRError | ShapeError) -> ModelFormatError:
    source = source_of(node)
    return ModelFormatError(
        f"a node does not fit its inputs: {error.message}",
        where=origin_of(node) + (f" at {source}" if source else ""),
        found=error.found,
        expected=error.expected,
        hint=error.hint,
    )
