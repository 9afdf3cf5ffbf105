"""Plans as JSON data, and back: what lowering found out is written down, so that it is not found out again.

Layouts, recipes of primitives and buffers are tables, whose entries name each other by number. A blocked layout is the
one that the library chooses for a recipe, and is asked for again; so are the sizes of scratch memory. Packed constants
are named by what they are made of, and so are kernels of Winograd's. Other code of ours cannot be written, nor can
constants that were computed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernelyard.runtime.api import align
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.packing import PackedConstants
from kernelyard_dnnl.plan import Plan
from kernelyard_dnnl.primitive import ChosenLayout, Descriptors, Factors, Primitive, Recipe, Size, Vector, primitive_of
from kernelyard_dnnl.primitive_attributes import Binary, Depthwise, Eltwise, Prelu, Runtime, Sum
from kernelyard_dnnl.values import Buffer, NativeKernel, Operation, Value, constant_value
from kernelyard_dnnl.work import fitting_threads

WRITTEN_NBYTES = 4096  # of a constant that is no constant of the graph: vectors of scales, say

LAYOUT = "layout"
_CLASSES = (Size, Vector, Factors, Descriptors, Eltwise, Binary, Prelu, Depthwise, Runtime)
_PARTS: dict[str, Any] = {each.__name__: each for each in _CLASSES}
_NO_FIELDS = {Sum.__name__: Sum}


def write_plan(plan: Plan, constants: Mapping[str, np.ndarray], threads: int) -> bytes | None:
    """Return a plan as JSON text; None where it has something that cannot be written.

    constants: those of the graph, by digest. threads: how many the plan is for.
    """
    try:
        return json.dumps(_Writer(plan, constants, threads).write(), default=_number).encode()
    except _NotWritableError:
        return None


def read_plan(
    text: bytes,
    packed: PackedConstants,
    constants: Mapping[str, np.ndarray],
    threads: int,
) -> Plan:
    """Return the plan that `write_plan` wrote for so many threads; its constants are packed, and its code is generated,
    once the preparation of `packed` is finished.

    Raises: StatusError where the library refuses a primitive today.
    """
    return _Reader(json.loads(text), packed, constants, threads).plan()


class _NotWritableError(Exception):
    """A plan has something that cannot be written."""


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise _NotWritableError


def _threads_of(recipe: Recipe, threads: int) -> int:
    return fitting_threads(recipe.kind, recipe.arguments, threads)


class _Writer:
    def __init__(self, plan: Plan, constants: Mapping[str, np.ndarray], threads: int) -> None:
        self._plan = plan
        self._constants = constants
        self._threads = threads
        self._layouts: dict[MemoryDescriptor, int] = {}
        self._recipes: dict[Recipe, int] = {}
        self._buffers: dict[Buffer, int] = {}
        self._tables: dict[str, list[Any]] = {"layouts": [], "recipes": [], "buffers": []}

    def write(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        operations = [self._operation(each) for each in self._plan.operations]
        return {**self._tables, "operations": operations, "nbytes": self._plan.scratch}

    def _operation(self, operation: Operation) -> list[Any]:
        arguments = [[index, *self._value(value)] for index, value in operation.arguments.items()]
        made_for = operation.label, operation.group, operation.groups
        return [self._code(operation.code), arguments, self._buffer(operation.writes), *made_for]

    def _code(self, code: Primitive | NativeKernel) -> Any:
        """Return the number of a primitive's recipe, or the parts of a kernel of ours."""
        if isinstance(code, NativeKernel):
            if code.parts is None:
                raise _NotWritableError
            return code.parts
        if code.threads != _threads_of(code.recipe, self._threads):
            raise _NotWritableError
        return self._recipe(code.recipe)

    def _value(self, value: Value) -> list[int]:
        return [self._buffer(value.buffer), self._layout(value.descriptor), value.offset]

    def _layout(self, layout: MemoryDescriptor) -> int:
        return self._entry("layouts", self._layouts, layout, lambda: self._layout_entry(layout))

    def _layout_entry(self, layout: MemoryDescriptor) -> list[Any]:
        chosen: list[Any] = []
        if layout.blocked is not None:
            if not isinstance(layout.blocked, ChosenLayout):
                raise _NotWritableError
            chosen = [self._recipe(layout.blocked.recipe), layout.blocked.what, layout.blocked.index]
        return [layout.shape, layout.dtype, layout.strides, *chosen]

    def _recipe(self, recipe: Recipe) -> int:
        return self._entry("recipes", self._recipes, recipe, lambda: [self._part(each) for each in recipe])

    def _part(self, part: Any) -> Any:
        """Return a part of a recipe: a number or text, a layout, or something that has parts itself."""
        if isinstance(part, MemoryDescriptor):
            return {LAYOUT: self._layout(part)}
        name = type(part).__name__
        if name in _NO_FIELDS:
            return {name: []}
        if isinstance(part, tuple):
            parts = [self._part(each) for each in part]
            return {name: parts} if name in _PARTS else parts
        return part

    def _buffer(self, buffer: Buffer) -> int:
        return self._entry("buffers", self._buffers, buffer, lambda: self._buffer_entry(buffer))

    def _buffer_entry(self, buffer: Buffer) -> list[Any]:
        if buffer.argument is not None:
            return ["argument", buffer.nbytes, buffer.argument]
        if buffer.constant is None:
            return ["planned", buffer.nbytes, self._plan.offsets[buffer]]
        if buffer.packed_from is not None:
            value, layout = buffer.packed_from
            return ["packed", *self._value(value), self._layout(layout)]
        if buffer.panels_of is not None:
            value, *how = buffer.panels_of
            return ["panels", *self._value(value), *how]
        if buffer.key in self._constants:
            return ["constant", buffer.key]
        if buffer.fill is not None or buffer.nbytes > WRITTEN_NBYTES:
            raise _NotWritableError
        data = base64.b64encode(buffer.constant.tobytes()).decode()
        return ["numbers", buffer.key, buffer.constant.dtype.str, data]

    def _entry(self, table: str, known: dict[Any, int], key: Any, make: Callable[[], list[Any]]) -> int:
        """Return the number of an entry, which is made once, after those that it names."""
        if key not in known:
            entry = make()
            known[key] = len(self._tables[table])
            self._tables[table].append(entry)
        return known[key]


class _Reader:
    def __init__(
        self, data: Mapping[str, Any], packed: PackedConstants, constants: Mapping[str, np.ndarray], threads: int
    ) -> None:
        self._data = data
        self._packed = packed
        self._constants = constants
        self._threads = threads
        self._layouts: dict[int, MemoryDescriptor] = {}
        self._recipes: dict[int, Recipe] = {}
        self._buffers: dict[int, Buffer] = {}
        self._offsets: dict[Buffer, int] = {}

    def plan(self) -> Plan:
        """Return the plan. Raises: StatusError."""
        operations = tuple([self._operation(*each) for each in self._data["operations"]])
        scratch = max((operation.code.scratchpad_nbytes for operation in operations), default=0)
        nbytes = self._data["nbytes"]
        return Plan(operations, self._offsets, nbytes, nbytes + align(scratch))

    def _operation(
        self, code: Any, arguments: list[list[int]], writes: int, label: str, group: int | None, groups: int
    ) -> Operation:
        made = self._kernel(code) if isinstance(code, list) else self._begun(self._primitive(code))
        values = {index: self._value(*value) for index, *value in arguments}
        return Operation(made, values, self._buffer(writes), label, group, groups)

    def _kernel(self, parts: list[Any]) -> NativeKernel:
        from kernelyard_dnnl.primitives.winograd_kernel import read_kernel  # inside: many plans have none

        return read_kernel(parts, self._threads)

    def _begun(self, primitive: Primitive) -> Primitive:
        """Begin to generate the code of a primitive."""
        primitive.describe()
        if not primitive.is_generated:
            self._packed.preparation.begin(primitive.generate)
        return primitive

    def _primitive(self, number: int) -> Primitive:
        recipe = self._recipe(number)
        return primitive_of(recipe, _threads_of(recipe, self._threads))

    def _value(self, buffer: int, layout: int, offset: int) -> Value:
        return Value(self._buffer(buffer), self._layout(layout), offset)

    def _layout(self, number: int) -> MemoryDescriptor:
        found = self._layouts.get(number)
        if found is None:
            shape, dtype, strides, *chosen = self._data["layouts"][number]
            if chosen:
                recipe, what, index = chosen
                found = self._primitive(recipe).layout(what, index)
            else:
                found = MemoryDescriptor(tuple(shape), dtype, None if strides is None else tuple(strides))
            self._layouts[number] = found
        return found

    def _recipe(self, number: int) -> Recipe:
        found = self._recipes.get(number)
        if found is None:
            found = self._recipes[number] = Recipe(*map(self._part, self._data["recipes"][number]))
        return found

    def _part(self, part: Any) -> Any:
        if isinstance(part, list):
            return tuple([self._part(each) for each in part])
        if not isinstance(part, dict):
            return part
        ((name, value),) = part.items()
        if name == LAYOUT:
            return self._layout(value)
        return _NO_FIELDS[name]() if name in _NO_FIELDS else _PARTS[name](*map(self._part, value))

    def _buffer(self, number: int) -> Buffer:
        found = self._buffers.get(number)
        if found is None:
            kind, *entry = self._data["buffers"][number]
            found = self._buffers[number] = getattr(self, f"_read_{kind}")(*entry)
        return found

    def _read_argument(self, nbytes: int, argument: int) -> Buffer:
        return Buffer(nbytes, argument=argument)

    def _read_planned(self, nbytes: int, offset: int) -> Buffer:
        buffer = Buffer(nbytes)
        self._offsets[buffer] = offset
        return buffer

    def _read_packed(self, buffer: int, layout: int, offset: int, packed: int) -> Buffer:
        return self._packed.pack(self._value(buffer, layout, offset), self._layout(packed)).buffer

    def _read_panels(self, buffer: int, layout: int, offset: int, m: int, lanes: int) -> Buffer:
        from kernelyard_dnnl.primitives.winograd_weights import pack_weights  # inside: as above

        return pack_weights(self._packed, self._value(buffer, layout, offset), m, lanes).buffer

    def _read_constant(self, digest: str) -> Buffer:
        return self._packed.plain(digest, lambda: constant_value(self._constants[digest], digest)).buffer

    def _read_numbers(self, key: str, dtype: str, data: str) -> Buffer:
        array = np.frombuffer(base64.b64decode(data), dtype)
        return self._packed.plain(key, lambda: constant_value(array, key)).buffer
