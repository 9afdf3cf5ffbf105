"""Importer: walks the nodes of a model and emits the ops of our vocabulary for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.errors import IRError, ModelFormatError, ShapeError, UnsupportedOperatorError
from kernelyard.plugins.api import (
    Constant,
    Expr,
    FreshNames,
    Function,
    IRModule,
    Problem,
    RejectedError,
    Tuple,
    Var,
)
from kernelyard_onnx import registry
from kernelyard_onnx.attributes import decode, resolve_references
from kernelyard_onnx.element_types import NARROW
from kernelyard_onnx.external_data import WeightFiles
from kernelyard_onnx.functions import default_attributes, function_body, mark_omitted_inputs
from kernelyard_onnx.graph_builder import GraphBuilder
from kernelyard_onnx.inputs import add_parameters
from kernelyard_onnx.node import Node, origin_of
from kernelyard_onnx.options import ImportOptions
from kernelyard_onnx.outputs import ModelOutput, model_output
from kernelyard_onnx.problems import DifferingBranchesError, create_malformed_error, create_unsupported_error
from kernelyard_onnx.schema import check_node, schema_of
from kernelyard_onnx.scope import Scope
from kernelyard_onnx.symbol_names import SymbolNames
from kernelyard_onnx.tensors import from_sparse, to_array, to_text
from kernelyard_onnx.undecided import UndecidedNodeError, UndecidedProblem
from kernelyard_onnx.values import LookedUpText, StringTensor, Value

if TYPE_CHECKING:
    from kernelyard_onnx.outlined_graph import OutlinedGraph

MAX_DEPTH = 32
# Converters take ranks and numbers of inputs as the standard promises them; a model that breaks the promise ends here.
_BROKEN_PROMISES = (ValueError, TypeError, IndexError, ArithmeticError)
NO_CONVERTER = "there is no converter for it"
MAX_NODES = 200_000
MAIN = "main"


class Importer:
    """Imports one model."""

    def __init__(self, model: onnx.ModelProto, files: WeightFiles) -> None:
        self.builder = GraphBuilder()
        self.symbols = SymbolNames()
        self.private: dict[str, Function] = {}
        self._names = FreshNames([MAIN])
        self.files = files
        self.problems: list[Problem] = []
        self.element_types: dict[Value, int] = {}  # where it is narrower than what carries it
        self.decided: Mapping[str, np.ndarray] = {}  # values of tensors of the main graph that its nodes make
        self.converted = 0
        self.functions = {(normal_domain(f.domain), f.name, f.overload): f for f in model.functions}

    # --- graphs -------------------------------------------------------------------------------------------------------
    def add_initializers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        """Make the graph's weights available."""
        for tensor in graph.initializer:
            scope.values[tensor.name] = self.constant(tensor)
        for sparse in graph.sparse_initializer:
            scope.values[sparse.values.name] = Constant(from_sparse(sparse, self.files))

    def constant(self, tensor: onnx.TensorProto) -> Value:
        """Convert a tensor of the model to a constant."""
        if tensor.data_type == onnx.TensorProto.STRING:
            return to_text(tensor)
        constant = Constant(to_array(tensor, self.files))
        if tensor.data_type in NARROW:
            self.element_types[constant] = tensor.data_type
        return constant

    def run_nodes(self, nodes: Iterable[onnx.NodeProto], scope: Scope, wanted: Collection[str]) -> None:
        """Convert nodes in order; nodes that stand before what they read are taken up again later.

        wanted: names that are read after these nodes.
        Raises: ModelFormatError when a node reads a name that nothing produces.
        """
        waiting = list(nodes)
        while waiting:
            later = self._run_once(waiting, scope, wanted)
            if len(later) == len(waiting):
                missing = next(name for name in later[0].input if name and scope.find(name) is None)
                raise ModelFormatError(
                    f"a node reads {missing!r}, which nothing produces", where=origin_of(later[0]), found=missing
                )
            waiting = later

    def _run_once(
        self, nodes: Sequence[onnx.NodeProto], scope: Scope, wanted: Collection[str]
    ) -> Sequence[onnx.NodeProto]:
        """Convert the nodes whose inputs are there; return the others."""
        later: list[onnx.NodeProto] = []
        for number, node in enumerate(nodes):
            try:
                if not self.run_node(node, scope):
                    later.append(node)
            except DifferingBranchesError as error:
                return self._convert_continuation(error, [*later, *nodes[number + 1 :]], scope, wanted)
        return later

    def _convert_continuation(
        self, error: DifferingBranchesError, following: list[onnx.NodeProto], scope: Scope, wanted: Collection[str]
    ) -> list[onnx.NodeProto]:
        """Convert an `If` with what follows it; return the nodes that are left."""
        from kernelyard_onnx.continuation import continue_in_branches  # inside: few models have such branches

        try:
            return continue_in_branches(error, following, scope, wanted)
        except DifferingBranchesError as failure:
            self._fail(failure.node.proto, failure.node.proto.output, scope, failure)
            return [node for node in following if not any(scope.find(name) for name in node.output)]

    def run_node(self, proto: onnx.NodeProto, scope: Scope) -> bool:
        """Convert one node; False when one of its inputs is not there yet.

        Raises: DifferingBranchesError, ModelFormatError, UnsupportedOperatorError.
        """
        if any(scope.has_failed(name) for name in proto.input):
            why = RejectedError("" if self._is_known(proto, scope) else NO_CONVERTER)
            self._fail(proto, proto.output, scope, why)
            return True
        inputs = [scope.find(name) if name else None for name in proto.input]
        if any(value is None and name for value, name in zip(inputs, proto.input, strict=True)):
            return False
        self.converted += 1
        if self.converted > MAX_NODES:
            raise UnsupportedOperatorError(
                f"the model has more than {MAX_NODES} nodes once its loops are unrolled", where=origin_of(proto)
            )
        try:
            results = self._convert(proto, inputs, scope)
        except DifferingBranchesError:
            raise
        except RejectedError as rejected:
            self._fail(proto, proto.output, scope, rejected)
            return True
        self._define_outputs(proto, results, scope)
        return True

    def _define_outputs(self, proto: onnx.NodeProto, results: Sequence[Value | None], scope: Scope) -> None:
        for index, (name, value) in enumerate(zip_longest(proto.output, results[: len(proto.output)])):
            if name in scope.values:
                raise ModelFormatError(f"two nodes produce {name!r}", where=origin_of(proto), found=name)
            if name and name in self.decided and not scope.depth:
                scope.values[name] = Constant(self.decided[name])
            elif name and value is not None:
                scope.values[name] = value
            elif name:
                self._fail(proto, [name], scope, RejectedError(f"its output {index} is not supported"))

    def _fail(self, proto: onnx.NodeProto, outputs: Iterable[str], scope: Scope, why: RejectedError) -> None:
        if str(why):  # without a reason, the nodes inside it have been listed
            domain = normal_domain(proto.domain)
            name = f"{domain}.{proto.op_type}" if domain else proto.op_type
            tensors = why.tensors if isinstance(why, UndecidedNodeError) else frozenset()
            self.problems.append(UndecidedProblem(name, origin_of(proto), str(why), why.inputs, tensors))
        scope.failed.update(outputs)

    def _is_known(self, proto: onnx.NodeProto, scope: Scope) -> bool:
        """Return whether a node's operator has a converter, so that all unknown ones are reported at once."""
        domain, opset = normal_domain(proto.domain), scope.opsets.get(normal_domain(proto.domain), 1)
        schema = schema_of(proto, opset)
        has_body = schema is not None and (schema.has_function or schema.has_context_dependent_function)
        is_function = (domain, proto.op_type, proto.overload) in self.functions
        return has_body or is_function or registry.oldest(domain, proto.op_type) is not None

    def _convert(self, proto: onnx.NodeProto, inputs: Sequence[Value | None], scope: Scope) -> Sequence[Value | None]:
        proto = resolve_references(proto, scope.attributes)
        domain = normal_domain(proto.domain)
        body = self.functions.get((domain, proto.op_type, proto.overload))
        if body is not None:
            return self.run_function(body, proto, inputs, scope)
        if not domain and domain not in scope.opsets:
            raise ModelFormatError(
                "the model does not say which version of the standard's operators it uses",
                where=origin_of(proto),
                found=", ".join(scope.opsets) or "no opset_import",
                expected="an opset_import of the domain ''",
            )
        opset = scope.opsets.get(domain, 1)
        convert = None
        if any(isinstance(value, (StringTensor, LookedUpText)) for value in inputs):
            convert = registry.find(registry.TEXT, proto.op_type, opset)
        convert = convert or registry.find(domain, proto.op_type, opset)
        if convert is None:
            return self.run_standard_function(proto, inputs, opset, scope)
        node = Node(proto, inputs, decode(proto.attribute, self.files), opset, self, scope)
        check_node(proto, opset)
        try:
            results = convert(node)
        except (IRError, ShapeError) as error:
            raise create_malformed_error(error, node) from error
        except _BROKEN_PROMISES as error:
            raise create_malformed_error(ModelFormatError(str(error) or type(error).__name__), node) from error
        made = results if isinstance(results, Sequence) else [results]
        self._keep_element_types(proto, opset, inputs, made)
        return made

    def _keep_element_types(
        self, proto: onnx.NodeProto, opset: int, inputs: Sequence[Value | None], made: Sequence[Value | None]
    ) -> None:
        """Propagate narrow element types from an input to the outputs that share its type in the standard."""
        narrow = [self.element_types.get(value) if value is not None else None for value in inputs]
        if not any(narrow):
            return
        schema = schema_of(proto, opset)
        pairs = [] if schema is None else zip(schema.inputs, narrow, strict=False)
        by_name = {parameter.type_str: data_type for parameter, data_type in pairs if data_type is not None}
        for parameter, value in zip(schema.outputs if schema is not None else (), made, strict=False):
            if value is not None and parameter.type_str in by_name and value not in self.element_types:
                self.element_types[value] = by_name[parameter.type_str]

    def run_standard_function(
        self, proto: onnx.NodeProto, inputs: Sequence[Value | None], opset: int, scope: Scope
    ) -> Sequence[Value | None]:
        """Convert an operator that the standard defines by other operators.

        Raises: RejectedError, ModelFormatError.
        """
        body = function_body(proto, inputs, opset)
        if body is None:
            first = registry.oldest(normal_domain(proto.domain), proto.op_type)
            raise RejectedError(f"it is supported from opset {first} on, not in {opset}" if first else NO_CONVERTER)
        return self.run_function(body, proto, inputs, scope, default_attributes(proto, opset))

    def run_function(
        self,
        body: onnx.FunctionProto,
        call: onnx.NodeProto,
        inputs: Sequence[Value | None],
        caller: Scope,
        defaults: Iterable[onnx.AttributeProto] = (),
    ) -> Sequence[Value | None]:
        """Convert the nodes of a function in place of its call.

        Raises: RejectedError (nested too deeply, or something inside is not supported), ModelFormatError.
        """
        if caller.depth >= MAX_DEPTH:
            raise RejectedError(f"functions call each other more than {MAX_DEPTH} levels deep")
        attributes = {a.name: a for a in (*defaults, *body.attribute_proto, *call.attribute)}
        opsets = {**caller.opsets, **opsets_of(body.opset_import)}
        scope = Scope(opsets, attributes=attributes, depth=caller.depth + 1)
        given = dict(zip(body.input, inputs, strict=False))
        scope.values.update({name: value for name, value in given.items() if value is not None})
        left_out = {name for name in body.input if given.get(name) is None}
        self.run_nodes([mark_omitted_inputs(node, left_out) for node in body.node], scope, body.output)
        return _results(scope, body.output)

    def run_subgraph(
        self, graph: onnx.GraphProto, around: Scope, inputs: Sequence[Value | None] = ()
    ) -> Sequence[Value | None]:
        """Convert a graph attribute (a branch of If, the body of Loop) in place; its results in order.

        Raises: RejectedError, ModelFormatError.
        """
        if around.depth >= MAX_DEPTH:
            raise RejectedError(f"graphs are nested more than {MAX_DEPTH} levels deep")
        scope = around.inner()
        self.add_initializers(graph, scope)
        given = zip(graph.input, inputs, strict=False)
        scope.values.update({parameter.name: value for parameter, value in given if value is not None})
        wanted = [output.name for output in graph.output]
        self.run_nodes(graph.node, scope, wanted)
        return _results(scope, wanted)

    def outline(
        self,
        graph: onnx.GraphProto,
        around: Scope,
        params: Sequence[Var] = (),
        inputs: Callable[[GraphBuilder], Sequence[Value | None]] = lambda _: (),
    ) -> OutlinedGraph:
        """Convert a graph attribute to the body of a function of its own; its results must be tensors.

        params: the function's first parameters. inputs: the graph's inputs, made with the builder of the body.
        Raises: RejectedError, ModelFormatError.
        """
        from kernelyard_onnx.outlined_graph import OutlinedGraph  # inside: few models have control flow

        builder = GraphBuilder(self.builder)
        with self.building(builder):
            results = self.run_subgraph(graph, around, inputs(builder))
        tensors = [result for result in results if isinstance(result, Expr)]
        if len(tensors) != len(results):
            raise RejectedError("its subgraph returns a value that is not a tensor")
        return OutlinedGraph(builder, tuple(params), tensors)

    @contextmanager
    def building(self, builder: GraphBuilder) -> Iterator[None]:
        """Emit what is converted inside of the block with this builder."""
        outer, self.builder = self.builder, builder
        try:
            yield
        finally:
            self.builder = outer

    def add_private(self, wanted: str, function: Function) -> str:
        """Add a function that only the model's own functions call; its name."""
        name = self._names.unique(wanted)
        self.private[name] = function
        return name

    # --- the result ---------------------------------------------------------------------------------------------------
    def finish(self, graph: onnx.GraphProto, scope: Scope) -> tuple[Function, tuple[ModelOutput, ...]]:
        """Return the function that gives the graph's outputs, the elements of sequences one by one; and the outputs.

        Raises: UnsupportedOperatorError, UndecidedInputsError, ModelFormatError.
        """
        if self.problems:
            raise create_unsupported_error(self.problems)
        outputs = tuple(model_output(output, scope.find(output.name), self.element_types) for output in graph.output)
        named = {name: tensor for output in outputs for name, tensor in output.tensors().items()}
        results = list(named.values())
        names = {"input_names": tuple(param.name for param in self.builder.params), "output_names": tuple(named)}
        result = results[0] if len(results) == 1 else Tuple(results)
        return Function(self.builder.params, self.builder.live_bindings(results), result, names), outputs


@dataclass(frozen=True)
class ImportedModel:
    """A module, and how its results make up the outputs of the model."""

    module: IRModule
    outputs: tuple[ModelOutput, ...]

    @property
    def input_names(self) -> tuple[str, ...]:
        """The parameters of the program; an element of a sequence is called `name[0]`."""
        return self.module["main"].attrs["input_names"]


def import_structured(
    model: onnx.ModelProto, options: Mapping[str, Any], files: WeightFiles | None = None
) -> ImportedModel:
    """Return the module of a model, whose outputs may be sequences, text and optionals.

    Raises: as `import_model`.
    """
    chosen = ImportOptions.of(options)
    files = (files or WeightFiles()).in_folder(chosen.folder)
    importer = Importer(model, files)
    importer.decided = chosen.values
    scope = Scope(opsets_of(model.opset_import))
    try:
        importer.add_initializers(model.graph, scope)
        add_parameters(importer.builder, model.graph, scope.values, chosen, importer.symbols, importer.element_types)
        importer.run_nodes(model.graph.node, scope, [output.name for output in model.graph.output])
    finally:
        files.close()
    main, outputs = importer.finish(model.graph, scope)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    return ImportedModel(IRModule({MAIN: main, **importer.private}, {"metadata": metadata}), outputs)


def import_model(model: onnx.ModelProto, options: Mapping[str, Any], files: WeightFiles | None = None) -> IRModule:
    """Return the module of a model: the function "main", and private ones for what data decides.

    All results are tensors: of text that the program chooses, indices; of maps, their values; of a sequence, each
    element. The module's attribute "metadata" has the model's own strings, and what `ModelOutput.legend` says.
    Raises: ModelFormatError, UnsupportedOperatorError, ExternalDataError, FrontendError (options).
    """
    imported = import_structured(model, options, files)
    legends = [output.legend() for output in imported.outputs]
    metadata = {key: text for legend in (imported.module.attrs["metadata"], *legends) for key, text in legend.items()}
    return imported.module.with_attrs(metadata=metadata)


def normal_domain(domain: str) -> str:
    """Normalize the standard domain, which has two spellings."""
    return "" if domain == "ai.onnx" else domain


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the opset versions by domain."""
    return {normal_domain(entry.domain): entry.version for entry in imports}


def _results(scope: Scope, names: Iterable[str]) -> Sequence[Value | None]:
    wanted = list(names)
    if any(scope.has_failed(name) for name in wanted):
        raise RejectedError("")
    return [scope.find(name) for name in wanted]
