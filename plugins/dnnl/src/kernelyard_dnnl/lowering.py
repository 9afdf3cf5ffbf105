"""From a graph at known shapes to operations: layouts are chosen as the graph is walked, and kept between neighbours.

Each kind of node has a lowering (package `primitives`), which asks its operands for the layouts it likes. What already
has that layout is used as it is, constants are packed once per process, anything else is reordered, once per layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from kernelyard.errors import CodegenError, ShapeError
from kernelyard.runtime.api import DimValues, JSONGraph, JSONNode, NodeEntry
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, channels_last, dense
from kernelyard_dnnl.packing import PackedConstants
from kernelyard_dnnl.primitive import Argument, Primitive, Recipe
from kernelyard_dnnl.primitive_attributes import PostOps, Runtime, RuntimeNumbers
from kernelyard_dnnl.speculation import Speculation, WrongAssumptionError
from kernelyard_dnnl.values import Buffer, NativeKernel, Node, Operation, Value, constant_value

SOURCE, DESTINATION = enums.ARG["src"], enums.ARG["dst"]
GRAPH_OUTPUT = 1 << 60  # the "last use" of a value that the graph returns
Result = TypeVar("Result")
Given: TypeAlias = Mapping[Runtime, Value]  # the numbers that a primitive is given at execution
NOTHING: Given = MappingProxyType({})


class Lowering:
    """The operations of one graph at known shapes, in the making.

    values: the symbolic dims. constants: arrays by digest. packed: where packed constants are kept.
    threads: how many a call may use. native_kernels: whether operations may be code of ours. begin: is given what can
    be done beside the lowering; None where the operations will not run here. is_one_of_many: whether the graph was
    lowered for so many sizes already that what the library does not give back counts. speculation: what the library
    answers, as far as that is known of other sizes.
    """

    def __init__(
        self,
        graph: JSONGraph,
        values: Mapping[str, int] | DimValues,
        constants: Mapping[str, np.ndarray],
        packed: PackedConstants,
        threads: int,
        native_kernels: bool = True,
        begin: Callable[[Callable[[], object]], object] | None = None,
        is_one_of_many: bool = False,
        speculation: Speculation | None = None,
    ) -> None:
        self._begin = begin
        self._speculation = speculation or Speculation()
        self._pending: Primitive | None = None  # of the last operation, which the next may still take back
        self.graph = graph
        self.threads = threads
        self.native_kernels = native_kernels
        self.operations: list[Operation] = []
        self._sizes = values if isinstance(values, DimValues) else DimValues(values)
        self.is_one_of_many = is_one_of_many
        self._constants = constants
        self.packed = packed
        self._tensors: dict[NodeEntry, Value] = {}
        self._last_reads: dict[Buffer, int] = {}  # the last node that reads a tensor in the buffer
        self._makers: dict[Buffer, Node] = {}
        self._copies: dict[Buffer, tuple[tuple[Value, Value], ...]] = {}
        self._copied_from: dict[Buffer, Buffer] = {}
        self._casts: dict[Buffer, tuple[Value, Value, Given]] = {}
        self._last_use = _last_uses(graph)
        self._current = -1
        self._label = ""
        # What renames dims at the graph's borders is of no node of the model.
        nodes = enumerate(graph.nodes)
        kernels = [number for number, node in nodes if node.kind == "kernel" and not node.attrs.get("is_border")]
        self._groups = {number: group for group, number in enumerate(kernels)}

    # --- the walk -----------------------------------------------------------------------------------------------
    def run(self, lowering_of: Callable[[str], Lower | None], kinds: Collection[str]) -> tuple[Value, ...]:
        """Lower every node by what its kind is lowered by; return the graph's outputs, whatever their layout."""
        for number, node in enumerate(self.graph.nodes):
            self._current = number
            if node.kind == "kernel":
                lower = lowering_of(node.op)
                if lower is None:
                    raise CodegenError(
                        f"the dnnl runtime has no kernel {node.op!r}",
                        where=f"{self.graph.symbol}, node {number}",
                        expected=", ".join(sorted(kinds)),
                    )
                made = self._node(number, node)
                result = self._lower_until_right(made, lower)
                self._makers[result.buffer] = made
            else:
                result = self._leaf(node)
            self._tensors[number, 0] = result
            last = max(self._last_reads.get(result.buffer, -1), self._last_use.get((number, 0), -1))
            self._last_reads[result.buffer] = last
        self._current = GRAPH_OUTPUT
        return tuple(self._tensors[entry] for entry in self.graph.outputs)

    def _lower_until_right(self, node: Node, lower: Lower) -> Value:
        """Lower a node; again, as if it had not been lowered yet, where something was assumed wrongly."""
        while True:
            operations, copies = self.operations.copy(), self._copies.copy()
            pending, copied_from, casts = self._pending, self._copied_from.copy(), self._casts.copy()
            self._speculation.begin_node(self._current)
            try:
                return self._lower_node(node, lower)
            except WrongAssumptionError:  # of another question each time
                self.operations, self._copies = operations, copies
                self._pending, self._copied_from, self._casts = pending, copied_from, casts

    def _lower_node(self, node: Node, lower: Lower) -> Value:
        self._label, place = node.label, f"{self.graph.symbol}, {node.label}"
        try:
            result = lower(node, self)
        except StatusError as error:
            error.where = f"{place}, {error.where}"
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Nodes come from files too: what their attributes say need not make sense.
            raise CodegenError(
                f"the {node.op} node is malformed", where=place, found=f"{type(error).__name__}: {error}"
            ) from error
        if result.shape != node.shape:
            raise CodegenError(
                f"the {node.op} node has the wrong shape", where=place, found=node.shape, expected=result.shape
            )
        return result

    def _leaf(self, node: JSONNode) -> Value:
        if node.kind == "constant":
            return self.packed.plain(node.digest, lambda: self.constant(self._constants[node.digest], node.digest))
        (spec,) = node.outputs
        descriptor = dense(_at_least_rank_1(self._sizes.shape(spec.shape)), spec.dtype)
        return Value(Buffer(descriptor.nbytes, argument=node.index), descriptor)

    def _node(self, number: int, node: JSONNode) -> Node:
        (spec,) = node.outputs
        sequence = tuple(self._tensors[entry] for _, entry in node.inputs)
        operands = {role: value for (role, _), value in zip(node.inputs, sequence, strict=True)}
        shape = _at_least_rank_1(self._sizes.shape(spec.shape))
        return Node(number, node.op, node.attrs, sequence, operands, shape, spec.dtype, self._sizes)

    # --- tensors ------------------------------------------------------------------------------------------------
    def new(self, descriptor: MemoryDescriptor) -> Value:
        """Return a tensor in planned memory of its own."""
        return Value(Buffer(descriptor.nbytes), descriptor)

    def numbers(self, array: np.ndarray) -> Value:
        """Return a vector of a few numbers as a constant tensor."""
        flat = np.ascontiguousarray(array).reshape(-1)
        return self.constant(flat, f"{flat.dtype} {hashlib.sha256(flat.tobytes()).hexdigest()}")

    def constant(self, array: np.ndarray, key: str) -> Value:
        """Return a constant tensor; `key` identifies its contents in this process."""
        return constant_value(array, key)

    def reorder(self, value: Value, descriptor: MemoryDescriptor) -> Value:
        """Return the tensor in that layout: itself, a packed constant, or a copy that all who ask for it share."""
        if value.descriptor.has_same_layout(descriptor):
            return value.view_as(descriptor)
        if value.is_constant:
            return self.packed.pack(value, descriptor)
        for source, copy in self._copies.get(value.buffer, ()):
            if source.has_same_place(value) and copy.descriptor.has_same_layout(descriptor):
                return copy.view_as(descriptor)
        copy = self.copy(*self._before_cast(value, descriptor))
        self._copies[value.buffer] = *self._copies.get(value.buffer, ()), (value, copy)
        self._copied_from[copy.buffer] = value.buffer
        return copy

    def _before_cast(self, value: Value, descriptor: MemoryDescriptor) -> tuple[Value, MemoryDescriptor, Given]:
        """Return what to copy for a tensor in that layout: the original of a cast, with what it is cast by, else the
        tensor itself."""
        cast, original, given = self._casts.get(value.buffer, (None, value, NOTHING))
        is_whole = cast is not None and cast.has_same_place(value)
        if is_whole and _is_shifted_wrongly(original, descriptor, given):
            return value, descriptor, NOTHING
        return (original, descriptor, given) if is_whole else (value, descriptor, NOTHING)

    def cast(self, value: Value, dtype: str, given: Given = NOTHING) -> Value:
        """Return a copy of the tensor in another dtype, its dims in the order they have; who then asks for another
        order gets it from the original in one step, and a copy that nobody reads is not made. given: scales and zero
        points, which make it a quantization or its reverse.
        """
        order = value.descriptor.order if value.descriptor.strides is not None else None
        cast = self.copy(value, dense(value.shape, dtype, order), given)
        if not value.buffer.is_planned:  # nothing is written over it later
            self._casts[cast.buffer] = cast, value, given
        return cast

    def copy(self, value: Value, descriptor: MemoryDescriptor, given: Given = NOTHING) -> Value:
        """Return a fresh copy of the tensor in that layout."""
        copy = self.new(descriptor)
        self.copy_into(value, copy, given=given)
        return copy

    def copy_into(self, value: Value, destination: Value, reader: str = "", given: Given = NOTHING) -> None:
        """Copy a tensor into another, which may have another layout or dtype; `reader` is used in labels."""
        layouts = value.descriptor, destination.descriptor
        primitive = self._speculation.reorder(Recipe("reorder", layouts, numbers=tuple(given)), self.threads)
        label = self._label
        self._label = f"reorder for {reader or label}"
        self.emit(primitive, {SOURCE: value, DESTINATION: destination, **make_given_arguments(given)})
        self._label = label

    def make_plain(self, value: Value) -> Value:
        """Return the tensor, dense and row-major."""
        return self.reorder(value, dense(value.shape, value.descriptor.dtype))

    def make_gapless(self, value: Value) -> Value:
        """Return the tensor in a layout that fills its memory, as blocked ones do; a copy only where there are gaps."""
        return value if value.descriptor.strides is None else self.make_strided(value)

    def make_strided(self, value: Value) -> Value:
        """Return the tensor in a dense layout that strides can tell: with its dims in the order they have, else row-
        major.
        """
        descriptor = value.descriptor
        return self.make_plain(value) if descriptor.strides is None else self.reorder(value, descriptor.canonical)

    def make_viewable(self, value: Value) -> Value:
        """Return the tensor in a layout that strides can tell, gaps or not.

        As it is where it has one, else row-major.
        """
        return self.make_plain(value) if value.descriptor.strides is None else value

    def make_channels_last(self, value: Value) -> Value:
        """Return the tensor with its channels (dim 1) innermost."""
        return self.reorder(value, channels_last(value.shape, value.descriptor.dtype))

    def reshape(self, value: Value, shape: Shape) -> Value:
        """Return the tensor with another shape, as row-major order has it.

        Raises: ShapeError when it has another number of elements.
        """
        view = value.reshape(shape)
        if view is None:
            view = self.reorder(value, value.descriptor.viewable_as(shape)).reshape(shape)
        if view is None:
            raise ShapeError("a reshape changes the number of elements", found=value.shape, expected=shape)
        return view

    def may_overwrite(self, value: Value, busy: Iterable[Value] = ()) -> bool:
        """Return True when the operation to come may write over this tensor: nobody reads it later, nor as another
        operand.
        """
        buffer = value.buffer
        if not buffer.is_planned or any(other.buffer is buffer for other in busy):
            return False
        return self._last_reads.get(buffer, -1) <= self._current

    def last_maker(self, value: Value) -> Node | None:
        """Return the node of the last operation, where that made this tensor and nobody reads it but the node to
        come."""
        is_last = bool(self.operations) and self.operations[-1].writes is value.buffer
        return self._makers.get(value.buffer) if is_last and self.may_overwrite(value) else None

    # --- operations ---------------------------------------------------------------------------------------------
    def primitive(
        self,
        kind: str,
        *arguments: Argument,
        post_ops: PostOps = (),
        skipped: int = 0,
        numbers: RuntimeNumbers = (),
    ) -> Primitive:
        """Return a primitive, for all threads or, where it is too small for them, for one; see `Recipe`.

        Raises: StatusError.
        """
        recipe = Recipe(kind, arguments, post_ops, skipped, numbers)
        return self._speculation.primitive(self._current, recipe, self.threads)

    def decide(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function decides about sizes; see `kernelyard_dnnl.traced.decide`."""
        return self._speculation.decide(function, *arguments)

    def defer(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function makes for sizes; see `kernelyard_dnnl.traced.defer`."""
        return self._speculation.defer(function, *arguments)

    def take_back(self) -> None:
        """Remove the last operation: the next one includes its work."""
        self.operations.pop()
        self._pending = None

    def _generate_pending(self) -> None:
        code, self._pending = self._pending, None
        if code is not None and self._begin is not None and not code.is_generated:
            self._begin(code.generate)

    def finish(self) -> None:
        """Wait for all that was begun. Raises: StatusError."""
        self._generate_pending()
        self.packed.preparation.finish()

    def emit(self, code: Primitive | NativeKernel, arguments: dict[int, Value]) -> None:
        """Add an operation, and invalidate values derived from the old contents of its destination.

        Empty results need no operation: some primitives of oneDNN would divide by their sizes.
        """
        if 0 in arguments[DESTINATION].shape:
            return
        written = arguments[DESTINATION].buffer
        self._copies.pop(written, None)
        self._casts.pop(written, None)
        original = self._copied_from.pop(written, None)
        if original in self._copies:
            kept = [pair for pair in self._copies[original] if pair[1].buffer is not written]
            self._copies[original] = tuple(kept)
        if isinstance(code, Primitive):
            code = self._speculation.rely_on(code)
            self._generate_pending()
            self._pending = code
        group = self._groups.get(self._current)
        self.operations.append(Operation(code, arguments, written, self._label, group, len(self._groups)))


Lower: TypeAlias = Callable[[Node, Lowering], Value]


def make_given_arguments(given: Given) -> dict[int, Value]:
    """Return numbers as arguments of an execution."""
    return {enums.ARG[f"attr_{number.what}"] | number.argument: value for number, value in given.items()}


def _last_uses(graph: JSONGraph) -> dict[NodeEntry, int]:
    """Return the number of the last node that reads each value; GRAPH_OUTPUT for what the graph returns."""
    last: dict[NodeEntry, int] = {}
    for number, node in enumerate(graph.nodes):
        for _, entry in node.inputs:
            last[entry] = number
    return last | dict.fromkeys(graph.outputs, GRAPH_OUTPUT)


def _is_shifted_wrongly(original: Value, descriptor: MemoryDescriptor, given: Given) -> bool:
    """Return True for a reorder that would store what is left of an innermost dim without its zero point.

    oneDNN 3.2 does so with more than 16 channels, of which 4 do not make up all, where it moves them behind space.
    """
    is_shifted = any(number.what == "zero_points" and number.argument == DESTINATION for number in given)
    if not is_shifted or descriptor.strides is None or original.descriptor.strides is None:
        return False
    order = descriptor.order
    innermost = descriptor.shape[order[-1]]
    return order != original.descriptor.order and innermost > 16 and innermost % 4 != 0


def _at_least_rank_1(shape: Sequence[int]) -> Shape:
    return tuple(shape) or (1,)
