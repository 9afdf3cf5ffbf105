"""Constants in the layouts that primitives prefer: packed once per process, shared by all shapes and calls."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kernelyard.runtime.memory import address_of, aligned_bytes, give_back_pages
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import Handle, load_library
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.primitive import Primitive, create_reorder, execution_arguments
from kernelyard_dnnl.thread_scope import thread_count
from kernelyard_dnnl.values import Buffer, Value


class PackedConstants:
    """The packed forms of a module's constants; may be used from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._packed: dict[str, list[tuple[Value, Value]]] = {}
        self._derived: dict[str, Value] = {}

    def pack(self, value: Value, descriptor: MemoryDescriptor, threads: int) -> Value:
        """A constant in that layout, copied at first need.

        Raises: StatusError.
        """
        with self._lock:
            forms = self._packed.setdefault(value.buffer.key, [])
            for source, packed in forms:
                same = source.offset == value.offset and source.descriptor.same_layout(value.descriptor)
                if same and packed.descriptor.same_layout(descriptor):
                    return packed.seen_as(descriptor)
            packed = self.make(value, descriptor, threads, f"{value.buffer.key}/{len(forms)}")
            forms.append((value, packed))
            return packed

    def derived(self, value: Value, form: str, make: Callable[[str], Value]) -> Value:
        """What `make` makes of a constant, called at first need with a key for the result; `form` says what it is."""
        with self._lock:
            key = f"{value.buffer.key}/{form}/{value.offset} {value.shape} {value.descriptor.strides}"
            if key not in self._derived:
                self._derived[key] = make(key)
            return self._derived[key]

    def make(self, value: Value, descriptor: MemoryDescriptor, threads: int, key: str) -> Value:
        """The constant in that layout; called once for each.

        Raises: StatusError.
        """
        assert value.buffer.constant is not None
        data = aligned_bytes(descriptor.nbytes)
        primitive = create_reorder(value.descriptor, descriptor, threads=threads)
        source = memory_object(value.descriptor.native, address_of(value.buffer.constant) + value.nbytes_before)
        destination = memory_object(descriptor.native, address_of(data))
        run_primitive(primitive, {enums.ARG["src"]: source, enums.ARG["dst"]: destination})
        give_back_pages(value.buffer.constant)
        return Value(Buffer(data.nbytes, constant=data, key=key), descriptor)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        packed = [packed for forms in self._packed.values() for _, packed in forms]
        return sum(each.buffer.nbytes for each in (*packed, *self._derived.values()))


def memory_object(descriptor: Handle, address: int) -> Handle:
    """A oneDNN memory object over bytes that the caller keeps alive."""
    library = load_library()
    return library.create(
        "dnnl_memory_create", "dnnl_memory_destroy", descriptor.address, library.engine.address, address
    )


def run_primitive(primitive: Primitive, memories: dict[int, Handle]) -> None:
    """Executes a primitive once, at build time."""
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
