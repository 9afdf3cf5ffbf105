"""Constants in the layouts that primitives prefer: packed once per process, shared by all shapes and calls.

Packing is begun when a layout is chosen, and done when the preparation is finished.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from kernelyard.runtime.api import CacheInfo, address_of, aligned_bytes, give_back_pages, renewed_in_children
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import ExecutionArgument, Handle, load_library
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.preparation import Preparation
from kernelyard_dnnl.primitive import Primitive, create_reorder
from kernelyard_dnnl.thread_scope import thread_count
from kernelyard_dnnl.values import Buffer, Value


class PackedConstants:
    """The packed forms of a module's constants; may be used from many threads."""

    def __init__(self) -> None:
        self.preparation = Preparation()
        self._lock = threading.Lock()
        self._packed: dict[str, list[tuple[Value, Value]]] = {}
        self._derived: dict[str, Value] = {}
        self._plain: dict[str, Value] = {}
        renewed_in_children(self)

    def _at_fork_reinit(self) -> None:
        """Leave behind what threads of the parent, which are not in this process, have not finished."""
        self._lock = threading.Lock()
        if self.preparation.is_busy:
            self.preparation, self._packed, self._derived, self._plain = Preparation(), {}, {}, {}

    def plain(self, key: str, make: Callable[[], Value]) -> Value:
        """Return a constant as it came, made at first use."""
        with self._lock:
            if key not in self._plain:
                self._plain[key] = make()
            return self._plain[key]

    def pack(self, value: Value, descriptor: MemoryDescriptor) -> Value:
        """Return a constant in that layout, packed at first need.

        Raises: StatusError.
        """
        with self._lock:
            forms = self._packed.setdefault(value.buffer.key, [])
            for source, packed in forms:
                same = source.offset == value.offset and source.descriptor.has_same_layout(value.descriptor)
                if same and packed.descriptor.has_same_layout(descriptor):
                    # Blocked layouts come from the library anew each time.
                    return packed if descriptor.strides is None else packed.view_as(descriptor)
            packed = self.make(value, descriptor, f"{value.buffer.key}/{len(forms)}")
            forms.append((value, packed))
            return packed

    def derive(self, value: Value, form: str, make: Callable[[str], Value]) -> Value:
        """Return a constant derived by `make`, called at first use with a key for the result; `form` names the form."""
        with self._lock:
            key = f"{value.buffer.key}/{form}/{value.offset} {value.shape} {value.descriptor.strides}"
            if key not in self._derived:
                self._derived[key] = make(key)
            return self._derived[key]

    def make(self, value: Value, descriptor: MemoryDescriptor, key: str) -> Value:
        """Return the constant in that layout; called once for each.

        Raises: StatusError.
        """
        create_reorder(value.descriptor, descriptor, threads=1)  # what cannot be packed fails here and now
        data = aligned_bytes(descriptor.nbytes)
        packed = self.fill_constant(value, descriptor, data, key, lambda: copy_constant(value, descriptor, data))
        packed.buffer.packed_from = value, descriptor
        return packed

    def fill_constant(
        self, value: Value, descriptor: MemoryDescriptor, data: np.ndarray, key: str, fill: Callable[[], None]
    ) -> Value:
        """Return a constant in `data`, which `fill` fills from another one."""
        source = value.buffer

        def work() -> None:
            if source.fill is not None:
                source.fill()
            fill()
            assert source.constant is not None
            give_back_pages(source.constant)

        return Value(Buffer(data.nbytes, constant=data, key=key, fill=self.preparation.begin(work)), descriptor)

    def info(self) -> CacheInfo:
        """Return what is held; constants times layouts bound it. Nothing counts look-ups."""
        with self._lock:
            packed = [packed for forms in self._packed.values() for _, packed in forms]
            nbytes = sum(each.buffer.nbytes for each in (*packed, *self._derived.values()))
        entries = len(packed) + len(self._derived)
        return CacheInfo(0, entries, entries, entries, nbytes)


def copy_constant(value: Value, descriptor: MemoryDescriptor, data: np.ndarray) -> None:
    """Write a constant in that layout to `data`.

    Raises: StatusError.
    """
    assert value.buffer.constant is not None
    primitive = create_reorder(value.descriptor, descriptor, threads=1)
    source = memory_object(value.descriptor.native, address_of(value.buffer.constant) + value.nbytes_before)
    destination = memory_object(descriptor.native, address_of(data))
    run_primitive(primitive, {enums.ARG["src"]: source, enums.ARG["dst"]: destination})


def memory_object(descriptor: Handle, address: int) -> Handle:
    """Return a oneDNN memory object over bytes that the caller keeps alive."""
    library = load_library()
    return library.create(
        "dnnl_memory_create", "dnnl_memory_destroy", descriptor.address, library.engine.address, address
    )


def run_primitive(primitive: Primitive, memories: dict[int, Handle]) -> None:
    """Execute a primitive once, at build time."""
    library = load_library()
    stream = library.new_stream()
    if primitive.scratchpad is not None:
        scratch = aligned_bytes(primitive.scratchpad_nbytes)
        memories = memories | {enums.ARG["scratchpad"]: memory_object(primitive.scratchpad, address_of(scratch))}
    arguments = execution_arguments(memories)
    handle = primitive.handle.address
    with thread_count(library, primitive.threads):
        library.call("dnnl_primitive_execute", handle, stream.address, len(memories), arguments)
        library.call("dnnl_stream_wait", stream.address)


def execution_arguments(memories: dict[int, Handle]) -> ctypes.Array[Any]:
    """Return the array that `dnnl_primitive_execute` takes."""
    items = [ExecutionArgument(index, memory.address) for index, memory in memories.items()]
    return (ExecutionArgument * len(items))(*items)
