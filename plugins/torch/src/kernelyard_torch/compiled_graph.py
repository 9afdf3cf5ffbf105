"""CompiledGraph: one graph of ATen operators as an Executable, called with torch's tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import sympy
import torch
from torch._guards import TracingContext
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from kernelyard import IRModule
from kernelyard.dims import Shape
from kernelyard.errors import KernelyardError, OptionError, PerformanceWarning, UnknownBackendError, warn_caller
from kernelyard.plugins.api import Expr, Function, RejectedError, TensorType
from kernelyard.runtime.api import Executable
from kernelyard_torch.compile_options import CompileOptions
from kernelyard_torch.complex_numbers import Complex, is_complex
from kernelyard_torch.converters import random
from kernelyard_torch.eager_values import EagerValues, find_returned_sizes, random_tensors, symbols_of_tensors
from kernelyard_torch.graph_outputs import GraphOutput, graph_output
from kernelyard_torch.importer import MAIN, GraphImporter, Shared
from kernelyard_torch.shape_encoded_int import ShapeEncodedInt
from kernelyard_torch.sizes import Sizes
from kernelyard_torch.symbol_names import symbol_names
from kernelyard_torch.tensors import to_array

Feed: TypeAlias = "Callable[[Any], list[np.ndarray]]"


class Program(NamedTuple):
    """Hold what a graph was compiled to: replaced as a whole, for other threads may be running it.

    fed: the positions of the arguments that it takes. states: of the parameters and buffers that are constants.
    """

    executable: Executable | None
    fed: dict[int, Feed]
    outputs: list[GraphOutput | None]
    states: dict[int, tuple[int, int]]

    def is_current(self, arguments: Sequence[Any]) -> bool:
        """Return True if no constant was written to or replaced since."""
        return all(_state(arguments[position]) == state for position, state in self.states.items())


class CompiledGraph:
    """A graph, compiled when it is first called: call it with what the graph takes, it gives what the graph gives.

    Parameters and buffers are constants until one is written to: then that one is an input. frozen: their positions;
    by default those that AOTAutograd tells.
    Raises: UnsupportedOperatorError when it is made.
    """

    def __init__(
        self, graph: GraphModule, inputs: Sequence[Any], options: CompileOptions, frozen: Sequence[int] | None = None
    ) -> None:
        self._graph = graph
        self._options = options
        self._frozen = tuple(find_frozen_positions(inputs) if frozen is None else frozen) if options.freeze else ()
        self._random = EagerValues(graph, random_tensors(graph))
        self._sizes = EagerValues(graph, find_returned_sizes(graph))
        self.program: Program | None = None
        self._lock = threading.Lock()  # of compiling
        self._has_warned = False
        self._read(inputs, frozenset())  # there are no values yet; whether all is supported is known without

    @property
    def executable(self) -> Executable | None:
        """Return what the graph was last compiled to; None before the first call, and where it computes nothing."""
        return None if self.program is None else self.program.executable

    def _compile(self, inputs: Sequence[Any]) -> Program:
        """Return a program of the parameters and buffers as they are, which another thread may have compiled."""
        with self._lock:
            last = self.program
            if last is not None and last.is_current(inputs):
                return last
            if last is None:  # writes to tensors of inference mode are not counted
                frozen = tuple(position for position in self._frozen if not inputs[position].is_inference())
            else:
                frozen = tuple(p for p, old in last.states.items() if old == _state(inputs[p]))
            states = {position: _state(inputs[position]) for position in frozen}
            module, fed, outputs = self._read(inputs, frozenset(frozen))
            executable = None if module is None else self._options.compile(module)
            self.program = Program(executable, fed, outputs, states)
            return self.program

    def _read(
        self, inputs: Sequence[Any], frozen: frozenset[int]
    ) -> tuple[IRModule | None, dict[int, Feed], list[GraphOutput | None]]:
        """Return the graph as a module, None when it computes nothing; its feeds and what its results are."""
        shared = Shared(Sizes(symbol_names(self._graph.graph)))
        importer = GraphImporter(self._graph, shared)
        fed = _feed(importer, inputs, frozen) | dict.fromkeys(self._feed_random(importer), _as_feeds)
        importer.run()
        outputs: list[GraphOutput | None] = []
        results: list[Expr] = []
        for given in importer.outputs():
            if given in self._sizes.nodes:
                outputs.append(graph_output(given, self._sizes.nodes.index(given)))
                continue
            result = importer.result(given)
            if result is None:
                outputs.append(None)
                continue
            output = graph_output(given, len(self._sizes.nodes) + len(results))
            outputs.append(output)
            results.append(output.permute_to_memory_order(importer.builder, result))
        shared.check()
        module = IRModule({MAIN: _main(importer, results), **shared.private}) if results else None
        return module, fed, outputs

    def _feed_random(self, importer: GraphImporter) -> list[int]:
        """Random numbers are parameters after all arguments; their positions."""
        count = len(importer.placeholders)
        for node in self._graph.graph.nodes:
            if str(node.target) in random.OPERATORS and node not in self._random.nodes:
                importer.fail(node, "the number of random values that it draws depends on run-time data")
        return [count + index for index, node in enumerate(self._random.nodes) if _add_parameter(importer, node)]

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Run on torch's tensors and numbers; PyTorch does where this cannot. Warns: PerformanceWarning, once."""
        try:
            return self._run(arguments)
        except (OptionError, UnknownBackendError):  # what the user wrote, not what the graph is
            raise
        except KernelyardError as error:
            if not self._has_warned:
                message = f"calls fall back to eager PyTorch where sizes are as in this one: {error}"
                warn_caller(message, PerformanceWarning)
            self._has_warned = True
        return self._graph.forward(*arguments)

    def _run(self, arguments: Sequence[Any]) -> list[Any]:
        program = self.program
        if program is None or not program.is_current(arguments):
            program = self._compile(arguments)
        given = (*arguments, *self._random(arguments))
        feeds = [feed for position, convert in program.fed.items() for feed in convert(given[position])]
        found = () if program.executable is None else program.executable(*feeds)
        results = (*self._sizes(arguments), *(found if isinstance(found, tuple) else (found,)))
        return [None if output is None else output.to_torch(results) for output in program.outputs]


def _main(importer: GraphImporter, results: Sequence[Expr]) -> Function:
    """Return the entry function; what is an input or a constant as it stands is copied, so that results are memory of
    their own.
    """
    builder = importer.builder
    names = {
        "input_names": tuple(param.name for param in builder.params),
        "output_names": tuple(f"output_{index}" for index in range(len(results))),
    }
    return builder.function(*results, attrs=names)


def find_frozen_positions(inputs: Sequence[Any]) -> tuple[int, ...]:
    """Return the positions of parameters and buffers, while AOTAutograd compiles a graph."""
    context = TracingContext.try_get()
    meta = None if context is None else context.fw_metadata
    static = [] if meta is None else meta.static_input_indices
    return tuple(position for position in static if isinstance(inputs[position], torch.Tensor))


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a fingerprint of a tensor, which changes when it is written to or replaced."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def find_rejected_nodes(graph: GraphModule, inputs: Sequence[Any]) -> set[FxNode]:
    """Return the nodes of a graph that cannot be expressed, each by itself."""
    importer = GraphImporter(graph, Shared(Sizes(symbol_names(graph.graph))), is_strict=False)
    _feed(importer, inputs, frozenset())
    for node in random_tensors(graph):
        _add_parameter(importer, node)
    importer.run()
    for given in importer.outputs():
        importer.result(given)
    return importer.rejected


def _feed(importer: GraphImporter, inputs: Sequence[Any], frozen: frozenset[int]) -> dict[int, Feed]:
    """Give the graph its inputs; the positions of those that are parameters of the program, and how each is fed."""
    fed: dict[int, Feed] = {}
    sizes, used = importer.shared.sizes, symbols_of_tensors(importer.module)
    shapes: dict[str, Shape] = {}
    encoded: dict[int, Feed] = {}
    for symbol, position in _find_number_symbols(importer.placeholders).items():
        placeholder = importer.placeholders[position]
        if symbol in used:
            number = ShapeEncodedInt.of(placeholder.meta["val"])
            dim, shapes[placeholder.name] = number.dim(sizes, placeholder.name)
            sizes.tell(symbol, dim)
            encoded[position] = number.feed
    for position, placeholder in enumerate(importer.placeholders):
        value = placeholder.meta.get("val")
        if position in frozen:
            importer.feed(placeholder, importer.shared.constant(inputs[position].detach()))
        elif isinstance(value, torch.Tensor) and _add_parameter(importer, placeholder) is not None:
            fed[position] = _as_feeds
    for name, shape in shapes.items():
        importer.builder.parameter(TensorType(shape, "bool"), name)  # nothing reads its elements
    return fed | encoded


def _find_number_symbols(placeholders: Sequence[FxNode]) -> dict[sympy.Symbol, int]:
    """Return the symbols that no tensor has as a size, with the position of the number that tells each."""
    values = [placeholder.meta.get("val") for placeholder in placeholders]
    sizes = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    known = {size.node.expr for size in sizes if isinstance(size, torch.SymInt)}
    encoded: dict[sympy.Symbol, int] = {}
    for position, value in enumerate(values):
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol and value.node.expr not in known:
            encoded.setdefault(value.node.expr, position)
    return encoded


def _add_parameter(importer: GraphImporter, node: FxNode) -> TensorType | None:
    """Let a node's tensor be a parameter of the program, or two where it is complex.

    None where its type is not supported.
    """
    try:
        type_ = importer.shared.type_of(node.meta["val"], parts=True)
    except RejectedError as rejected:
        importer.fail(node, str(rejected))
        return None
    parameter = importer.builder.parameter
    if is_complex(node.meta["val"]):
        importer.feed(node, Complex(parameter(type_, f"{node.name}_real"), parameter(type_, f"{node.name}_imag")))
    else:
        importer.feed(node, parameter(type_, node.name))
    return type_


def _as_feeds(value: torch.Tensor) -> list[np.ndarray]:
    """Convert a tensor to the program's inputs: one array, or the parts of a complex tensor."""
    if is_complex(value):
        return [to_array(part) for part in torch.view_as_real(value.resolve_conj()).unbind(-1)]
    return [to_array(value)]
