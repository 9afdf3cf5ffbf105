"""The oneDNN C API by ctypes: finding the library, its functions, and the ownership of its objects.

Any `libdnnl.so.3` serves (oneDNN 3.x has one C ABI). It is looked for, in this order: the path in
`KERNELYARD_DNNL_LIBRARY`, the distribution `onednn-cpu-gomp`, the copy inside `paddlepaddle`, the system's
library path.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from typing import Any

from kernelyard.errors import BackendUnavailableError, ExecutionError
from kernelyard.runtime.api import (
    EnvironmentVariable,
    cached_property,
    find_distribution,
    share_thread_pool,
    thread_pool,
)
from kernelyard_dnnl import _enums as enums

LIBRARY_VARIABLE = EnvironmentVariable(
    "KERNELYARD_DNNL_LIBRARY", "the path of oneDNN's library", "that of the package onednn-cpu-gomp, else the system's"
)
LIBRARY_NAME = "libdnnl.so.3"
DISTRIBUTIONS = ("onednn-cpu-gomp", "paddlepaddle")
PADDLE = "distribution paddlepaddle"  # it uses the library, too
# Primitives that are kept beside those in use: of new sizes all the time, each with its own code.
CACHED_PRIMITIVES = 128
INSTALL_HINT = "pip install 'onednn-cpu-gomp==2023.2.0', or set KERNELYARD_DNNL_LIBRARY to the path of a libdnnl.so.3"

OPENMP_PAUSE_HARD = 2
TEAM_FUNCTIONS = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")

Dims = c_int64 * enums.MAX_NDIMS
_OUT = POINTER(c_void_p)
_DIMS = POINTER(c_int64)

# Argument types of the functions that we call, other than those of `create_descriptor`; each returns
# a dnnl_status_t. A leading POINTER(c_void_p) receives the new object.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "dnnl_engine_create": (_OUT, c_int, c_size_t),
    "dnnl_engine_destroy": (c_void_p,),
    "dnnl_stream_create": (_OUT, c_void_p, c_uint),
    "dnnl_stream_destroy": (c_void_p,),
    "dnnl_stream_wait": (c_void_p,),
    "dnnl_memory_desc_create_with_tag": (_OUT, c_int, _DIMS, c_int, c_int),
    "dnnl_memory_desc_create_with_strides": (_OUT, c_int, _DIMS, c_int, _DIMS),
    "dnnl_memory_desc_clone": (_OUT, c_void_p),
    "dnnl_memory_desc_query": (c_void_p, c_int, c_void_p),
    "dnnl_memory_desc_destroy": (c_void_p,),
    "dnnl_memory_create": (_OUT, c_void_p, c_void_p, c_void_p),
    "dnnl_memory_set_data_handle": (c_void_p, c_void_p),
    "dnnl_memory_destroy": (c_void_p,),
    "dnnl_primitive_attr_create": (_OUT,),
    "dnnl_primitive_attr_set_scratchpad_mode": (c_void_p, c_int),
    "dnnl_primitive_attr_set_post_ops": (c_void_p, c_void_p),
    "dnnl_primitive_attr_set_scales_mask": (c_void_p, c_int, c_int),
    "dnnl_primitive_attr_set_zero_points_mask": (c_void_p, c_int, c_int),
    "dnnl_primitive_attr_destroy": (c_void_p,),
    "dnnl_post_ops_create": (_OUT,),
    "dnnl_post_ops_append_eltwise": (c_void_p, c_int, c_float, c_float),
    "dnnl_post_ops_append_sum": (c_void_p, c_float, c_int, c_int),
    "dnnl_post_ops_append_binary": (c_void_p, c_int, c_void_p),
    "dnnl_post_ops_append_prelu": (c_void_p, c_int),
    "dnnl_post_ops_append_dw": (c_void_p, c_int, c_int, c_int, *[c_int64] * 3),
    "dnnl_post_ops_destroy": (c_void_p,),
    "dnnl_primitive_desc_query": (c_void_p, c_int, c_int, c_void_p),
    "dnnl_primitive_desc_clone": (_OUT, c_void_p),
    "dnnl_primitive_desc_next_impl": (c_void_p,),
    "dnnl_primitive_desc_destroy": (c_void_p,),
    "dnnl_primitive_create": (_OUT, c_void_p),
    "dnnl_primitive_execute": (c_void_p, c_void_p, c_int, c_void_p),
    "dnnl_primitive_destroy": (c_void_p,),
    "dnnl_reorder_primitive_desc_create": (_OUT, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    "dnnl_set_primitive_cache_capacity": (c_int,),
}
# Functions that may take longer than a microsecond or two: others run meanwhile, which costs as long to arrange.
LENGTHY = frozenset(
    (
        "dnnl_engine_create",
        "dnnl_stream_wait",
        "dnnl_primitive_desc_next_impl",
        "dnnl_primitive_create",
        "dnnl_primitive_execute",
        "dnnl_reorder_primitive_desc_create",
    )
)

# Functions that return something else than a status.
QUERIES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "dnnl_memory_desc_get_size": (c_size_t, (c_void_p,)),
    "dnnl_memory_desc_equal": (c_int, (c_void_p, c_void_p)),
    "dnnl_primitive_desc_query_md": (c_void_p, (c_void_p, c_int, c_int)),
    "dnnl_get_effective_cpu_isa": (c_int, ()),
}


class ExecutionArgument(ctypes.Structure):
    """`dnnl_exec_arg_t`: an argument's index and its memory object."""

    _fields_ = [("index", c_int), ("memory", c_void_p)]


class Version(ctypes.Structure):
    """`dnnl_version_t`."""

    _fields_ = [
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    ]


class StatusError(ExecutionError):
    """A oneDNN function returned a status other than success."""

    code = "KY520"

    def __init__(self, function: str, status: int) -> None:
        self.call = function, status
        self.status = enums.STATUS[status] if 0 <= status < len(enums.STATUS) else str(status)
        super().__init__(f"oneDNN: {function} returned {self.status}", where=function)


class Handle:
    """Owns one oneDNN object and destroys it once; `address` is what the C functions take."""

    __slots__ = ("_destroy", "address")

    def __init__(self, address: int, destroy: Callable[[int], object]) -> None:
        self.address = address
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.address)


class Library:
    """One loaded libdnnl.

    Raises: OSError when the file cannot be loaded, AttributeError when it lacks a function that we need.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        self._holding_lock = ctypes.PyDLL(path)
        self._shares_pool = share_thread_pool(self._library)
        version = self._library.dnnl_version
        version.argtypes, version.restype = (), POINTER(Version)
        found = version().contents
        self.version: tuple[int, int, int] = (found.major, found.minor, found.patch)
        self._functions = {name: self._status_function(name, types) for name, types in SIGNATURES.items()}
        for name, (result, types) in QUERIES.items():
            self._functions[name] = self._plain_function(name, result, types)
        self.engine = self.create("dnnl_engine_create", "dnnl_engine_destroy", enums.ENGINE_CPU, 0)
        if not self._shares_pool:
            os.register_at_fork(before=self._rest_threads)

    def _plain_function(self, name: str, result: Any, types: tuple[Any, ...] | None) -> Callable[..., Any]:
        is_known = name in SIGNATURES or name in QUERIES
        function = getattr(self._holding_lock if is_known and name not in LENGTHY else self._library, name)
        function.argtypes, function.restype = types, result
        return function

    def _status_function(self, name: str, types: tuple[Any, ...] | None) -> Callable[..., Any]:
        function = self._plain_function(name, c_int, types)
        function.errcheck = _check_status  # pyright: ignore[reportFunctionMemberAccess]
        return function

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of SIGNATURES or QUERIES.

        Raises: StatusError.
        """
        return self._functions[name](*arguments)

    def create(
        self, name: str, destroy: str, *arguments: Any, owner: Callable[[int, Callable[[int], object]], Handle] = Handle
    ) -> Handle:
        """Call a function whose first argument receives a new object, which the handle (`owner`) frees with `destroy`.

        Raises: StatusError.
        """
        address = c_void_p()
        self._functions[name](ctypes.byref(address), *arguments)
        if address.value is None:
            raise StatusError(name, enums.STATUS.index("runtime_error"))
        return owner(address.value, self._functions[destroy])

    def create_descriptor(self, kind: str, *arguments: Any) -> Handle:
        """Call `dnnl_<kind>_primitive_desc_create` on the engine; the arguments are of the C types that it takes.

        Raises: StatusError, with status "unimplemented" where the library is older than the function.
        """
        name = f"dnnl_{kind}_primitive_desc_create"
        if name not in self._functions:
            try:
                self._functions[name] = self._status_function(name, None)
            except AttributeError as error:
                raise StatusError(name, enums.STATUS.index("unimplemented")) from error
        return self.create(name, "dnnl_primitive_desc_destroy", c_void_p(self.engine.address), *arguments)

    def disable_primitive_cache(self) -> None:
        """Disable the cache in which the library keeps primitives.

        Of a primitive that it keeps, oneDNN 3.2 gives out a descriptor whose kernels (`brgemm_t`) refer to post-ops of
        the descriptor that the primitive was made of, which may have been destroyed; a primitive that is made of it
        once the library has let go of the other one reads freed memory.
        """
        self.call("dnnl_set_primitive_cache_capacity", 0)

    def clone_descriptor(self, descriptor: Handle) -> Handle:
        """Return another handle of a primitive's descriptor, which stays what it is when the first is moved on."""
        return self.create("dnnl_primitive_desc_clone", "dnnl_primitive_desc_destroy", descriptor.address)

    def new_stream(self) -> Handle:
        """Return a stream; a bound call has its own."""
        flags = enums.STREAM_DEFAULT_FLAGS
        return self.create("dnnl_stream_create", "dnnl_stream_destroy", self.engine.address, flags)

    @cached_property
    def execute_address(self) -> int:
        """The address of `dnnl_primitive_execute`, for call tables."""
        address = ctypes.cast(self._library.dnnl_primitive_execute, c_void_p).value
        assert address is not None
        return address

    @cached_property
    def openmp(self) -> tuple[Any, Any] | None:
        """`omp_get_max_threads` and `omp_set_num_threads` of the OpenMP runtime that the library uses, if it does."""
        addresses = self._openmp_functions(("omp_get_max_threads", "omp_set_num_threads"))
        if addresses is None:
            return None
        get, put = addresses.values()
        return ctypes.PYFUNCTYPE(c_int)(get), ctypes.PYFUNCTYPE(None, c_int)(put)

    @cached_property
    def team_functions(self) -> dict[str, int] | None:
        """Addresses of the functions by which compiled code starts parallel regions in the OpenMP runtime that the
        library uses; None where that has no GNU interface."""
        return self._openmp_functions(TEAM_FUNCTIONS)

    def _openmp_functions(self, names: tuple[str, ...]) -> dict[str, int] | None:
        pool = thread_pool() if self._shares_pool else None
        if pool is not None:
            return {name: pool.for_kernels[name] for name in names}
        try:
            functions = {name: getattr(self._library, name) for name in names}
        except AttributeError:
            return None
        return {name: ctypes.cast(function, c_void_p).value or 0 for name, function in functions.items()}

    def _rest_threads(self) -> None:
        # A child has none of the parent's OpenMP threads but would wait for them: let the parent end them first.
        pause = getattr(self._library, "omp_pause_resource_all", None)
        if pause is not None:
            pause(OPENMP_PAUSE_HARD)

    @property
    def threads(self) -> int:
        """The size of the OpenMP team of a parallel region started by the calling thread; 1 without OpenMP."""
        return 1 if self.openmp is None else int(self.openmp[0]())

    @threads.setter
    def threads(self, count: int) -> None:
        if self.openmp is not None:
            self.openmp[1](count)


def _check_status(status: int, function: Any, arguments: tuple[Any, ...]) -> int:
    if status:
        raise StatusError(function.__name__, status)
    return status


def candidates() -> Iterator[tuple[str, str]]:
    """Yield the paths at which to look for libdnnl, best first, each with the source it comes from."""
    path = LIBRARY_VARIABLE.get()
    if path:
        yield path, LIBRARY_VARIABLE
        return  # what the user names is what they get, or an error
    for distribution in DISTRIBUTIONS:
        found = find_distribution(distribution)
        for file in found.files(LIBRARY_NAME) if found is not None else ():
            yield file, f"distribution {distribution}"
    yield LIBRARY_NAME, "the system's library path"


@cache
def load_library() -> Library:
    """Return the oneDNN library of this process, loaded at first need.

    Raises: BackendUnavailableError naming every place that was tried.

    Example:
        >>> load_library().version >= (3, 0, 0)
        True
    """
    reasons = []
    for path, source in candidates():
        try:
            library = Library(path)
            if source != PADDLE:
                library.disable_primitive_cache()
            return library
        except (OSError, AttributeError, StatusError) as error:
            reasons.append(f"{source}: {error}")
    raise BackendUnavailableError(
        "no usable oneDNN library",
        where="backend 'dnnl'",
        found="; ".join(reasons),
        expected=f"{LIBRARY_NAME} of oneDNN 3.x for the CPU",
        hint=INSTALL_HINT,
    )
