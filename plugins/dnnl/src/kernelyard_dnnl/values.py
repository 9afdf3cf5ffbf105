"""The intermediate form of a lowering: buffers, the tensors in them, and the operations that read and write these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.runtime.api import DimValues, NamedTuple, Part
from kernelyard_dnnl._native import Handle
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, dense
from kernelyard_dnnl.primitive import Primitive
from kernelyard_dnnl.work import flops, layouts_of


@dataclass(eq=False, repr=False)
class Buffer:
    """Memory that a plan knows by its role; compared by identity.

    nbytes: its size. argument: the number of the call's argument it is, or None. constant: the bytes of a constant,
    or None; `key` then identifies them, and they are there once `fill` was called. A buffer that is neither is planned
    memory. packed_from: what a packed constant is a copy of, and in which layout. panels_of: the weights, the tile and
    the floats in a vector that Winograd's are made of. memories: the library's objects for a constant, by offset in
    bytes and layout; all plans share them.
    """

    nbytes: int
    argument: int | None = None
    constant: np.ndarray | None = None
    key: str = ""
    fill: Callable[[], None] | None = None
    packed_from: tuple[Value, MemoryDescriptor] | None = None
    panels_of: tuple[Value, int, int] | None = None
    memories: dict[tuple[int, MemoryDescriptor], Handle] = field(default_factory=dict)

    @property
    def is_planned(self) -> bool:
        return self.argument is None and self.constant is None


@dataclass(eq=False, repr=False)
class Value:
    """A tensor: a buffer, and how its bytes are read. Several values may see one buffer.

    offset: of the first element in the buffer, in elements.
    """

    buffer: Buffer
    descriptor: MemoryDescriptor
    offset: int = 0

    @property
    def shape(self) -> Shape:
        return self.descriptor.shape

    @property
    def is_constant(self) -> bool:
        return self.buffer.constant is not None

    def view_as(self, descriptor: MemoryDescriptor) -> Value:
        """Return the same bytes under another descriptor."""
        return Value(self.buffer, descriptor, self.offset)

    def has_same_place(self, other: Value) -> bool:
        """Return True when both read the same bytes of the same buffer the same way."""
        here, there = (self.buffer, self.offset), (other.buffer, other.offset)
        return here == there and self.descriptor.has_same_layout(other.descriptor)

    @property
    def nbytes_before(self) -> int:
        """Bytes of the buffer before the first element."""
        return self.offset * dtypes.itemsize(self.descriptor.dtype)

    def permute(self, axes: Shape) -> Value:
        """Return the same bytes with dims renamed: dim i of the result is dim axes[i] of this."""
        return self.view_as(self.descriptor.permute(axes))

    def reshape(self, shape: Shape) -> Value | None:
        """Return the same bytes seen with another shape, None where that needs a copy."""
        if shape == self.shape:
            return self
        descriptor = self.descriptor.reshape(shape)
        return None if descriptor is None else self.view_as(descriptor)

    def part(self, start: Sequence[int], shape: Shape) -> Value:
        """Return a box of the tensor, whose strides are known: some of the same bytes."""
        strides = self.descriptor.strides
        assert strides is not None
        offset = self.offset + sum(first * stride for first, stride in zip(start, strides, strict=True))
        return Value(self.buffer, MemoryDescriptor(shape, self.descriptor.dtype, strides), offset)

    def array(self) -> np.ndarray:
        """Return the elements of a constant, as NumPy sees them."""
        assert self.buffer.constant is not None
        assert self.descriptor.strides is not None
        if self.buffer.fill is not None:
            self.buffer.fill()
        dtype = dtypes.to_numpy(self.descriptor.dtype)
        strides = [stride * dtype.itemsize for stride in self.descriptor.strides]
        data = self.buffer.constant.reshape(-1).view(np.uint8)
        found = np.ndarray(self.shape, dtype, data, self.offset * dtype.itemsize, strides)
        found.flags.writeable = False
        return found


def constant_value(array: np.ndarray, key: str) -> Value:
    """Return a constant tensor; `key` identifies its contents in this process."""
    descriptor = dense(array.shape or (1,), dtypes.from_numpy(array.dtype))
    data = np.ascontiguousarray(array)
    return Value(Buffer(data.nbytes, constant=data, key=key), descriptor)


@dataclass(eq=False, repr=False)
class Node:
    """A kernel of the graph at known shapes.

    number: its place in the graph. operands: its tensors by role; roles that repeat are numbered in `sequence`.
    shape: that of its one output, rank 0 written as (1,). known: values of the symbolic dims.
    """

    number: int
    op: str
    attrs: Mapping[str, Any]
    sequence: tuple[Value, ...]
    operands: Mapping[str, Value]
    shape: Shape
    dtype: str
    known: DimValues = field(default_factory=lambda: DimValues({}))

    def sizes(self, attribute: str) -> tuple[int, ...]:
        """Return an attribute that holds dims: numbers as they are, expressions evaluated."""
        items = self.attrs[attribute]
        return tuple([self.known(dims.parse(item)) if isinstance(item, str) else item for item in items])

    @property
    def post_ops(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.attrs.get("post_ops", ()))

    @property
    def label(self) -> str:
        return f"{self.op} (node {self.number})"


class NativeKernel(NamedTuple):
    """Code of our own as an operation, beside oneDNN's primitives: it reads all it needs from a record.

    function: a C function `int32_t f(int64_t* record, _, int32_t threads, _)`.
    record: what the function reads; addresses are 0 until the operation is bound. places: where in the record the
    address of each argument goes, by the library's argument numbers. scratch_place: where that of the scratch memory
    goes. flops: additions and multiplications. keep: what must live as long as the function is called. parts: what a
    kernel of Winograd's is made of.
    """

    implementation: str
    function: int
    record: tuple[int, ...]
    places: Mapping[int, int]
    scratch_place: int
    scratchpad_nbytes: int
    threads: int
    flops: int
    keep: object = None
    parts: tuple[Any, ...] | None = None


@dataclass(eq=False, repr=False)
class Operation:
    """One execution of a primitive, or of code of ours; `arguments` by the library's argument numbers.

    group: the kernel node that it is done for, of the `groups` of its graph, counted without inputs and constants.
    """

    code: Primitive | NativeKernel
    arguments: dict[int, Value]
    writes: Buffer
    label: str
    group: int | None = None
    groups: int = 0
    reads: list[Buffer] = field(init=False)

    def describe(self) -> Part:
        """Describe the operation for profiles."""
        nbytes = sum(value.descriptor.nbytes for value in self.arguments.values())
        if isinstance(self.code, NativeKernel):
            work = self.code.flops
        else:
            work = round(flops(self.code.recipe.kind, layouts_of(self.code.recipe.arguments)))
        return Part(self.label, self.code.implementation, nbytes, work or None, self.group, self.groups)

    def __post_init__(self) -> None:
        self.reads = [value.buffer for value in self.arguments.values()]
