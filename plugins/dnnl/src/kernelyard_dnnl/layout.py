"""Memory descriptors: the shape, element type and layout of a tensor as oneDNN sees it.

A layout is given by strides, in elements. oneDNN may also choose a blocked one, which has no strides; such a
descriptor keeps the library's own object. Everything here is immutable.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from ctypes import POINTER, byref, c_int, c_int64
from functools import lru_cache
from typing import TypeAlias

from kernelyard import dtypes
from kernelyard.errors import CodegenError
from kernelyard.runtime.api import cached_property, record
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import Dims, Handle, load_library

Shape: TypeAlias = "tuple[int, ...]"

# As many as the plan of a detector makes. Where sizes change all the time, older ones only keep small objects of the
# library alive between those of newer plans, which fragments the heap.
KEPT_DESCRIPTORS = 128

_DTYPE_NAMES = {value: name for name, value in enums.DATA_TYPE.items()}


@record(eq=False)
class MemoryDescriptor:
    """A tensor's shape, dtype and layout; equal where these are, and where it is the same blocked layout.

    strides: of each dim, in elements; None where oneDNN keeps a blocked layout (`blocked` then holds it) or may choose
    any layout.
    """

    shape: Shape
    dtype: str
    strides: Shape | None
    blocked: Handle | None = None

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return self.shape, self.dtype, self.strides, self.blocked

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, MemoryDescriptor) and self._key == other._key)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def native(self) -> Handle:
        """The library's descriptor.

        Raises: CodegenError for a dtype or rank that oneDNN does not have.
        """
        return self.blocked or _native_descriptor(self.shape, self.dtype, self.strides)

    @property
    def is_open(self) -> bool:
        """True where oneDNN is to choose the layout."""
        return self.strides is None and self.blocked is None

    @property
    def address(self) -> int:
        """The `dnnl_memory_desc_t` handle for C functions."""
        return self.native.address

    @cached_property
    def nbytes(self) -> int:
        """Bytes of memory that the tensor takes, padding of blocked layouts included."""
        if self.strides is not None:  # as the library has it: up to the end of the dim that reaches furthest
            extents = [size * stride for size, stride in zip(self.shape, self.strides, strict=True) if size != 1]
            return 0 if 0 in self.shape else max(extents, default=1) * itemsize(self.dtype)
        return int(load_library().call("dnnl_memory_desc_get_size", self.address))

    @cached_property
    def order(self) -> Shape:
        """The dims from the outermost to the innermost in memory.

        Dims of size 1 leave a choice: row-major or channels-last where that is right, as oneDNN looks for these.
        """
        assert self.strides is not None
        for order in (tuple(range(self.rank)), channels_last_order(self.rank)):
            if self.has_same_layout(dense(self.shape, self.dtype, order)):
                return order
        strides, shape = self.strides, self.shape
        moving = sorted((axis for axis in range(self.rank) if shape[axis] != 1), key=lambda axis: -strides[axis])
        places = [axis for axis in range(self.rank) if shape[axis] != 1]
        order = list(range(self.rank))
        for place, axis in zip(places, moving, strict=True):
            order[place] = axis
        return tuple(order)

    @cached_property
    def is_dense(self) -> bool:
        """True when the elements fill their memory with no gap, in some order of the dims."""
        return self.strides is not None and self.has_same_layout(dense(self.shape, self.dtype, self.order))

    @property
    def canonical(self) -> MemoryDescriptor:
        """A dense descriptor with strides of dims of size 1 as oneDNN expects them."""
        return dense(self.shape, self.dtype, self.order)

    @cached_property
    def is_plain(self) -> bool:
        """True when the tensor is dense and row-major."""
        return self.strides is not None and self.has_same_layout(dense(self.shape, self.dtype))

    def has_same_layout(self, other: MemoryDescriptor) -> bool:
        """Return True when both describe the same bytes the same way; strides of dims of size 1 do not matter."""
        if self is other:
            return True
        if (self.shape, self.dtype) != (other.shape, other.dtype):
            return False
        if self.strides is not None and other.strides is not None:
            pairs = zip(self.shape, self.strides, other.strides, strict=True)
            return 0 in self.shape or all(size == 1 or a == b for size, a, b in pairs)
        return bool(load_library().call("dnnl_memory_desc_equal", self.address, other.address))

    def permute(self, axes: Sequence[int]) -> MemoryDescriptor:
        """Return the same memory with its dims renamed: dim i of the result is dim axes[i] of this."""
        assert self.strides is not None
        shape, strides = tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes)
        return MemoryDescriptor(shape, self.dtype, strides)

    def reshape(self, shape: Shape) -> MemoryDescriptor | None:
        """Return the same memory seen with another shape; None where no strides can say that."""
        if self.strides is None:
            return None
        strides = _reshape_strides(self.shape, self.strides, shape)
        return None if strides is None else MemoryDescriptor(shape, self.dtype, strides)

    def viewable_as(self, shape: Shape) -> MemoryDescriptor:
        """Return a dense layout of this tensor that can be seen with the other shape.

        Dims that are merged or split together become one run of memory, each run in its place: where channels are
        innermost they stay there. Without strides, or where the numbers of elements differ, it is row-major.
        """
        if self.strides is None or 0 in self.shape or math.prod(self.shape) != math.prod(shape):
            return dense(self.shape, self.dtype)
        strides = self.strides
        runs = sorted(_runs_of_reshape(self.shape, shape), key=lambda run: -strides[run[-1]])
        ones = [axis for axis, size in enumerate(self.shape) if size == 1]
        return dense(self.shape, self.dtype, [*ones, *(axis for run in runs for axis in run)])


def dense(shape: Sequence[int], dtype: str, order: Sequence[int] | None = None) -> MemoryDescriptor:
    """Return a descriptor with no gaps; `order` names the dims from the outermost to the innermost (default: row-
    major).

    Example:
        >>> dense((2, 3, 4), "float32", (0, 2, 1)).strides
        (12, 1, 3)
    """
    key = tuple(shape), dtype, tuple(range(len(shape)) if order is None else order)
    try:
        return _dense(*key)
    except TypeError:  # traced sizes have no hash
        return _dense.__wrapped__(*key)


@lru_cache(maxsize=KEPT_DESCRIPTORS)
def _dense(shape: Shape, dtype: str, order: Shape) -> MemoryDescriptor:
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return MemoryDescriptor(shape, dtype, tuple(strides))


def channels_last_order(rank: int) -> Shape:
    """Return the order of dims N, C, spatial... with C innermost."""
    return (0, *range(2, rank), 1) if rank > 2 else tuple(range(rank))


def channels_last(shape: Sequence[int], dtype: str) -> MemoryDescriptor:
    """Return a descriptor of N, C, spatial... with the channels innermost in memory."""
    return dense(shape, dtype, channels_last_order(len(shape)))


def any_layout(shape: Sequence[int], dtype: str) -> MemoryDescriptor:
    """Return a descriptor whose layout the primitive chooses."""
    return MemoryDescriptor(tuple(shape), dtype, None)


def from_native(handle: Handle) -> MemoryDescriptor:
    """Read a descriptor of the library; strided ones become plain Python facts."""
    query = _Query(handle.address)
    shape, dtype = query.vector("dims"), _DTYPE_NAMES[query.integer("data_type")]
    if query.integer("format_kind") == enums.FORMAT_KIND_BLOCKED and not query.integer("inner_nblks"):
        strided = MemoryDescriptor(shape, dtype, query.vector("strides"))
        # Weights of integer products may have sums behind them, which strides do not tell.
        if load_library().call("dnnl_memory_desc_equal", strided.address, handle.address):
            return strided
    return MemoryDescriptor(shape, dtype, None, handle)


class _Query:
    """Reads the fields of a native memory descriptor."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.rank = self.integer("ndims")

    def integer(self, name: str) -> int:
        value = c_int()
        load_library().call("dnnl_memory_desc_query", self.address, enums.QUERY[name], byref(value))
        return value.value

    def vector(self, name: str) -> Shape:
        values = POINTER(c_int64)()
        load_library().call("dnnl_memory_desc_query", self.address, enums.QUERY[name], byref(values))
        return tuple(values[i] for i in range(self.rank))


def c_dims(values: Iterable[int]) -> ctypes.Array[c_int64]:
    """Return a `dnnl_dims_t`."""
    return Dims(*values)


@lru_cache(maxsize=KEPT_DESCRIPTORS)
def _native_descriptor(shape: Shape, dtype: str, strides: Shape | None) -> Handle:
    if dtype not in enums.DATA_TYPE:
        raise CodegenError(f"oneDNN has no dtype {dtype}", expected=", ".join(enums.DATA_TYPE))
    if not 1 <= len(shape) <= enums.MAX_NDIMS:
        raise CodegenError(f"oneDNN has no tensors of rank {len(shape)}", expected=f"1 to {enums.MAX_NDIMS}")
    kind = "tag" if strides is None else "strides"
    layout = enums.FORMAT_TAG_ANY if strides is None else c_dims(strides)
    return load_library().create(
        f"dnnl_memory_desc_create_with_{kind}",
        "dnnl_memory_desc_destroy",
        len(shape),
        c_dims(shape),
        enums.DATA_TYPE[dtype],
        layout,
    )


def _reshape_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Return the strides of a view of `target` shape: each group of old dims that is one run of memory is split into
    new dims."""
    if math.prod(shape) != math.prod(target):
        return None
    if 0 in shape:
        return dense(target, "float32").strides
    runs = _merge_runs(shape, strides)
    result: list[int] = []
    remaining, step = runs.pop() if runs else (1, 1)
    for size in reversed(target):
        if size == 1:
            result.append(step * remaining)
            continue
        if remaining == 1 and runs:
            remaining, step = runs.pop()
        if remaining % size:
            return None
        result.append(step)
        remaining, step = remaining // size, step * size
    return tuple(reversed(result))


def _runs_of_reshape(shape: Shape, target: Shape) -> list[list[int]]:
    """Return the dims of `shape` above 1 in groups, each with as many elements as neighbouring dims of `target`."""
    sizes = iter(target)
    runs: list[list[int]] = []
    found = wanted = 1
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if found == wanted:
            runs.append([])
        runs[-1].append(axis)
        found *= size
        while wanted < found:
            wanted *= next(sizes)
    return runs


def _merge_runs(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """Merge neighbouring dims that are one run of memory, and drop dims of size 1: pairs (size, stride)."""
    runs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return runs


def itemsize(dtype: str) -> int:
    """Return the size of one element in bytes."""
    return dtypes.itemsize(dtype)
