"""Primitives: created once per descriptor, post-ops and thread count, kept in a bounded cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from ctypes import byref, c_char_p, c_float, c_int64, c_void_p
from functools import lru_cache, partial
from threading import Lock
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from kernelyard.runtime.api import CacheInfo, NamedTuple, cached_property, renewed_in_children
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import CACHED_PRIMITIVES, Handle, load_library
from kernelyard_dnnl.layout import MemoryDescriptor, c_dims, from_native
from kernelyard_dnnl.primitive_attributes import Depthwise, PostOps, RuntimeNumbers, attributes_of
from kernelyard_dnnl.thread_scope import thread_count

REFERENCE = re.compile(r"\bref\b|^ref")
# Kinds whose descriptors take the library milliseconds: what finds the next implementation does not begin anew.
SLOW_TO_DESCRIBE = ("deconvolution_forward",)
PLAIN = re.compile(r"\bgemm\b|^simple")


Argument: TypeAlias = "int | float | Size | MemoryDescriptor | Vector | Factors | Descriptors | None"


class Size(NamedTuple):
    """A `dnnl_dim_t` argument."""

    value: int


class Vector(NamedTuple):
    """A `dnnl_dims_t` argument."""

    values: tuple[int, ...]


class Factors(NamedTuple):
    """An argument that is an array of floats."""

    values: tuple[float, ...]


class Descriptors(NamedTuple):
    """An argument that is an array of memory descriptors."""

    values: tuple[MemoryDescriptor, ...]


class Recipe(NamedTuple):
    """The recipe of a primitive: the arguments of `dnnl_<kind>_primitive_desc_create` (engine and attributes aside),
    its post-ops, how many of oneDNN's implementations, best first, are skipped, and the numbers that it is given at
    execution.

    Creating it is refused with the status "unimplemented" where oneDNN has no implementation, "last_impl_reached" where
    it has no further one.
    """

    kind: str
    arguments: tuple[Argument, ...]
    post_ops: PostOps = ()
    skipped: int = 0
    numbers: RuntimeNumbers = ()


class ChosenLayout(Handle):
    """The library's descriptor of a blocked layout, and whose it is: `what` ("weights_md", ...) of a recipe, and which
    of them.

    Equal where the layouts are: what is made for one serves for the other.
    """

    __slots__ = ("index", "recipe", "what")

    def __init__(
        self, address: int, destroy: Callable[[int], object], recipe: Recipe, what: str, index: int = 0
    ) -> None:
        super().__init__(address, destroy)
        self.recipe = recipe
        self.what = what
        self.index = index

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, ChosenLayout):
            return self is other
        return bool(load_library().call("dnnl_memory_desc_equal", self.address, other.address))

    def __hash__(self) -> int:
        return hash(self.what)


class Primitive:
    """A primitive of the library: its implementation's name, the layouts it chose, and its scratch memory.

    threads: what the OpenMP environment is to be set to when it is created, and whenever it runs.
    """

    def __init__(self, recipe: Recipe, threads: int) -> None:
        self.recipe = recipe
        self.threads = threads
        self._lock = renewed_in_children(Lock())  # of its own: several are created at the same time
        self._descriptor: Handle | None = None
        self._further: Handle | None = None
        self._handle: Handle | None = None

    @property
    def descriptor(self) -> Handle:
        """The library's answer to the recipe: an implementation and its layouts. Raises: StatusError."""
        return self._descriptor or self.describe()

    def describe(self) -> Handle:
        """Ask the library, where that has not been done yet. Raises: StatusError."""
        with self._lock:
            if self._descriptor is None:
                create = _create_reorder_descriptor if self.recipe.kind == "reorder" else _create_descriptor
                found = create(self.recipe, self.threads)
                if self.recipe.kind in SLOW_TO_DESCRIBE:
                    self._further, found = found, load_library().clone_descriptor(found)
                self._descriptor = found
            return self._descriptor

    def take_further(self) -> Handle | None:
        """Return a descriptor that can be moved on to the next implementation; None where somebody has it already."""
        with self._lock:
            further, self._further = self._further, None
            return further

    @property
    def handle(self) -> Handle:
        """The executable object; creating it generates code. Raises: StatusError."""
        return self._handle or self.generate()

    @property
    def is_generated(self) -> bool:
        """True once the executable primitive has been created."""
        return self._handle is not None

    def generate(self) -> Handle:
        """Create the executable object, where it is not there yet. Raises: StatusError."""
        library, descriptor = load_library(), self.descriptor
        with self._lock:
            if self._handle is None:
                with thread_count(library, self.threads):
                    address = descriptor.address
                    self._handle = library.create("dnnl_primitive_create", "dnnl_primitive_destroy", address)
            return self._handle

    @cached_property
    def implementation(self) -> str:
        """oneDNN's name of the implementation, such as `brgconv:avx512_core`."""
        text = c_char_p()
        query = enums.QUERY["impl_info_str"]
        load_library().call("dnnl_primitive_desc_query", self.descriptor.address, query, 0, byref(text))
        return (text.value or b"").decode()

    @cached_property
    def source(self) -> MemoryDescriptor:
        """The layout of the first source."""
        asked = self._asked[0]
        return self.layout("src_md") if asked.is_open else asked

    @cached_property
    def weights(self) -> MemoryDescriptor:
        """The layout of the weights."""
        asked = self._asked[1]
        return self.layout("weights_md") if asked.is_open else asked

    @cached_property
    def destination(self) -> MemoryDescriptor:
        """The layout of the destination."""
        asked = self._asked[-1]
        if asked.is_open or any(isinstance(post_op, Depthwise) for post_op in self.recipe.post_ops):
            return self.layout("dst_md")
        return asked

    @property
    def _asked(self) -> list[MemoryDescriptor]:
        # The first is that of the source, the last that of the result.
        return [argument for argument in self.recipe.arguments if isinstance(argument, MemoryDescriptor)]

    @cached_property
    def depthwise_weights(self) -> MemoryDescriptor:
        """The layout of the weights of the post-op that is a depthwise convolution."""
        return self.layout("exec_arg_md", enums.ARG["depthwise"] | enums.ARG["weights"])

    @cached_property
    def scratchpad(self) -> Handle | None:
        """The descriptor of the scratch memory, where the primitive needs some."""
        return self._clone("scratchpad_md") if self.scratchpad_nbytes else None

    @cached_property
    def scratchpad_nbytes(self) -> int:
        """Bytes of scratch memory."""
        lent = self._borrow_layout("scratchpad_md")
        return int(load_library().call("dnnl_memory_desc_get_size", lent)) if lent else 0

    def has_layout(self, what: str, index: int, layout: MemoryDescriptor) -> bool:
        """Tell if a layout that the library chose, such as "weights_md", is this one."""
        lent = self._borrow_layout(what, index)
        return bool(lent) and bool(load_library().call("dnnl_memory_desc_equal", lent, layout.address))

    def layout(self, what: str, index: int = 0) -> MemoryDescriptor:
        """Return a layout that the library chose, such as "weights_md"."""
        handle = self._clone(what, index)
        assert handle is not None, f"{self.implementation} has no {what}"
        return from_native(handle)

    def _borrow_layout(self, what: str, index: int = 0) -> int | None:
        # A pointer into the primitive descriptor.
        return load_library().call("dnnl_primitive_desc_query_md", self.descriptor.address, enums.QUERY[what], index)

    def _clone(self, what: str, index: int = 0) -> Handle | None:
        lent = self._borrow_layout(what, index)
        if not lent:
            return None
        made = partial(ChosenLayout, recipe=self.recipe, what=what, index=index)
        return load_library().create("dnnl_memory_desc_clone", "dnnl_memory_desc_destroy", lent, owner=made)


_in_use: WeakValueDictionary[tuple[Recipe, int], Primitive] = WeakValueDictionary()


@lru_cache(maxsize=CACHED_PRIMITIVES)
def primitive_of(recipe: Recipe, threads: int) -> Primitive:
    """Return a primitive that some plan uses, or that was asked for lately; else a new one, which the library has not
    been asked about."""
    found = _in_use.get((recipe, threads))
    if found is None:
        found = _in_use[recipe, threads] = Primitive(recipe, threads)
    return found


def primitives_info() -> CacheInfo:
    """Return the counts of the primitives of this process: all that are alive; `capacity` are kept beside those in
    use."""
    hits, misses, capacity, _ = primitive_of.cache_info()
    return CacheInfo(hits, misses, len(_in_use), capacity or 0)


def _create_descriptor(recipe: Recipe, threads: int) -> Handle:
    library = load_library()
    further = _further(recipe, threads) if recipe.skipped and recipe.kind in SLOW_TO_DESCRIBE else None
    if further is not None:
        return further
    converted = [_convert_argument(argument) for argument in recipe.arguments]
    attributes = attributes_of(recipe.post_ops, recipe.numbers)
    with thread_count(library, threads):
        descriptor = library.create_descriptor(recipe.kind, *converted, c_void_p(attributes.address))
        for _ in range(recipe.skipped):
            library.call("dnnl_primitive_desc_next_impl", descriptor.address)
    return descriptor


def _further(recipe: Recipe, threads: int) -> Handle | None:
    before = primitive_of(recipe._replace(skipped=recipe.skipped - 1), threads)
    before.describe()
    further = before.take_further()
    if further is not None:
        with thread_count(load_library(), threads):
            load_library().call("dnnl_primitive_desc_next_impl", further.address)
    return further


def create_reorder(
    source: MemoryDescriptor,
    destination: MemoryDescriptor,
    *,
    threads: int,
    post_ops: PostOps = (),
    numbers: RuntimeNumbers = (),
) -> Primitive:
    """Return the primitive that copies a tensor into another layout (or dtype).

    Raises: StatusError.
    """
    primitive = primitive_of(Recipe("reorder", (source, destination), post_ops, numbers=numbers), threads)
    primitive.describe()
    return primitive


def _create_reorder_descriptor(recipe: Recipe, threads: int) -> Handle:
    library = load_library()
    engine = library.engine.address
    source, destination = recipe.arguments
    assert isinstance(source, MemoryDescriptor)
    assert isinstance(destination, MemoryDescriptor)
    attributes = attributes_of(recipe.post_ops, recipe.numbers)  # held: the cache may let go of them meanwhile
    with thread_count(library, threads):
        return library.create(
            "dnnl_reorder_primitive_desc_create",
            "dnnl_primitive_desc_destroy",
            source.address,
            engine,
            destination.address,
            engine,
            attributes.address,
        )


@lru_cache(maxsize=256)
def speed(implementation: str) -> int:
    """Rank an implementation: 0 for a reference loop, 1 for a plain loop or GEMM, 2 for specialized code."""
    if REFERENCE.search(implementation):
        return 0
    return 1 if PLAIN.search(implementation) else 2


# C types of arguments; an int, or NULL, is what it is.
CONVERSIONS: dict[type, Callable[[Any], Any]] = {
    float: c_float,
    MemoryDescriptor: lambda argument: c_void_p(argument.address),
    Size: lambda argument: c_int64(argument.value),
    Vector: lambda argument: c_dims(argument.values),
    Factors: lambda argument: (c_float * len(argument.values))(*argument.values),
    Descriptors: lambda argument: (c_void_p * len(argument.values))(*(each.address for each in argument.values)),
}


def _convert_argument(argument: Argument) -> Any:
    """Convert an argument to its C type."""
    convert = CONVERSIONS.get(type(argument))
    return argument if convert is None else convert(argument)
