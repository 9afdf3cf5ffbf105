"""RuntimeModule: the runtime half of a backend, and what it gives the virtual machine to run.

A module holds compiled functions. They can be called from Python in destination-passing style (inputs, then outputs:
`get_function`), and they can be bound to memory that is known beforehand (`bind`), which gives native calls that run
without Python in between.
"""

from __future__ import annotations

import ctypes
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from kernelyard import dtypes
from kernelyard.dims import Dim
from kernelyard.errors import ExecutionError
from kernelyard.records import NamedTuple, record
from kernelyard.runtime.abi import memory

if TYPE_CHECKING:
    from kernelyard.runtime.abi.native_unit import NativeUnit
    from kernelyard.runtime.device.driver import DeviceDriver
    from kernelyard.runtime.lru import CacheInfo


DEFAULT_MAX_PLANS = 16


class NativeCall(NamedTuple):
    """A call of the C function `int32_t f(void* a, void* b, int32_t n, void* d)` at an address; 0 means success."""

    function: int
    a: int = 0
    b: int = 0
    n: int = 0
    d: int = 0


Step: TypeAlias = "NativeCall | Callable[[], object]"
"""A Python function fails by what it raises; what it returns is ignored, as `ctypes.memmove` returns an address."""


class BoundTensor(NamedTuple):
    """Memory of a dense row-major tensor; the address is a multiple of 64."""

    address: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return memory.nbytes_of(self.shape, self.dtype)

    def as_array(self) -> np.ndarray:
        """Return the memory as a NumPy array; the caller keeps the memory alive."""
        return array_at(self.address, self.shape, self.dtype)


class Part(NamedTuple):
    """One step of a bound call, described for profiles.

    label: what it computes, for people. implementation: the library's name of the code. nbytes: what it reads and
    writes, weights included. flops: None where they are not known. group: which of a region's `groups` kernels it is
    part of, in the order in which the backend's codegen was given them; None where that is not known.
    """

    label: str
    implementation: str = ""
    nbytes: int = 0
    flops: int | None = None
    group: int | None = None
    groups: int = 0


@dataclass(eq=False, repr=False)
class BoundCall:
    """One call of a module's function over fixed memory.

    steps: what to run, in order. keep: objects that must live as long as the steps.
    rebind: for arguments (by their number) that may move: a function that takes the new address (aligned to 16 bytes)
      for the next runs. Arguments without one stay where they were bound.
    describe: what each of the steps is, in order, for profiles; None if the call is a single step.
    slots: for arguments (by their number) whose address the steps read in one word of memory: where this word is.
    counters: what an engine counted inside the steps in the last run, parts in order with their seconds; as many each
      time. Asked in profiles alone, in place of `describe`.
    """

    steps: list[Step]
    keep: list[object] = field(default_factory=list)
    rebind: Mapping[int, Callable[[int], None]] = field(default_factory=dict)
    describe: Callable[[], Sequence[Part]] | None = None
    slots: Mapping[int, int] = field(default_factory=dict)
    counters: Callable[[], Sequence[tuple[Part, float]]] | None = None


class NativeKernel(NamedTuple):
    """Code of a function that reads nothing but its arguments' addresses, and numbers that follow from the sizes.

    function: the address of a C function `int32_t f(void** addresses, int64_t* numbers, int32_t threads, void*
    workspace)`; 0 means success. num_numbers: how many these are. dims: what these follow from. evaluate: of the values
    of the dims and the threads of a call, the numbers and the bytes of workspace.
    """

    function: int
    num_numbers: int
    dims: tuple[Dim, ...]
    evaluate: Callable[[Sequence[int], int], tuple[Sequence[int], int]]


@record
class BindContext:
    """Resources that a module may use when it binds: threads, workspace memory, and the device.

    workspace(nbytes) -> address: 64-byte aligned, valid only while the bound call runs, shared with other calls.
    max_plans: for how many sets of sizes a module may keep what it prepared for a function. is_deterministic: whether
    the same sizes are to give the same bits, whatever was bound before. is_profiled: whether calls are profiled, for
    engines that collect counters only on request (`BoundCall.counters`).
    device: None for the CPU; otherwise the addresses of arguments and workspace are the device's, and the last
    `num_outputs` arguments are what the function writes.
    """

    threads: int
    workspace: Callable[[int], int]
    device: DeviceDriver | None = None
    num_outputs: int = 0
    max_plans: int = DEFAULT_MAX_PLANS
    is_deterministic: bool = False
    is_profiled: bool = False


class RuntimeModule(ABC):
    """Compiled functions of one kind, loadable from bytes.

    A subclass overrides `get_function`, or `bind` by way of `BindableModule`. The distribution that defines it has an
    entry point of the group `kernelyard.runtime`, named as its `kind`:
    `load(data: bytes, constants: Mapping[str, numpy.ndarray]) -> RuntimeModule`.
    """

    kind: ClassVar[str]
    # True where functions give the same bits for whatever number of threads they are bound, always. Programs that are
    # compiled for `Target("cpu", deterministic=True)` bind other modules for one thread.
    is_thread_invariant: ClassVar[bool] = False
    # The kind of device whose memory its functions work on. In a program for another device a module of the CPU is
    # bound to host memory, and its arguments are copied there and back.
    device_kind: ClassVar[str] = "cpu"
    # True where all that a bound call does on a device is to put work on the device's stream: it neither waits nor
    # allocates, so that the device may capture it and replay it.
    is_capturable: ClassVar[bool] = False
    # For modules without a `native_unit`: how to compile a model so that C programs can run it all the same.
    native_hint: ClassVar[str] = "leave this backend out (backends=[...]), or kernelyard.load the library in Python"

    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """Return the names of the functions, in order."""

    @abstractmethod
    def get_function(self, symbol: str) -> Callable[..., Any]:
        """Return the function of that name: called with input and then output tensors (anything with `__dlpack__`), it
        writes the outputs. Keyword `symbols` gives the values of symbolic dims, where the function takes it.

        Raises: ExecutionError for an unknown name (`unknown_symbol`).
        """

    def evaluate(self, symbol: str, arrays: Sequence[np.ndarray], symbols: Mapping[str, int]) -> Sequence[np.ndarray]:
        """Return the results of a function that decides their sizes itself, as new arrays.

        Only modules that have such functions override it. Raises: ExecutionError.
        """
        raise ExecutionError(f"{symbol} of a {self.kind} module does not allocate its results")

    @abstractmethod
    def save_to_bytes(self) -> bytes:
        """Return the module without its constants; equal modules give equal bytes."""

    def constants(self) -> Mapping[str, np.ndarray]:
        """Return the constants the functions need, by content digest."""
        return {}

    @property
    def needs(self) -> str:
        """Requirements on the machine that runs this, in a few words, saved with the artifact; "" for none."""
        return ""

    def inspect(self) -> str:
        """Return the module as text for people."""
        return f"{self.kind}: {', '.join(self.symbols())}"

    def cache_info(self) -> Mapping[str, CacheInfo]:
        """Return what the module keeps of the sizes that it was bound for, by a name for each cache."""
        return {}

    def native_unit(self) -> NativeUnit | None:
        """Return the functions as C source and object code, which a program of another language can run; None where
        running them takes Python.
        """
        return None

    def prepare(self, symbol: str, values: Mapping[str, int], threads: int) -> None:  # noqa: B027  most have nothing to do
        """Do what takes long before a function can be bound and follows from the sizes: compile, load, pack weights.

        values: of the symbolic dims, as far as they are known; none are where the sizes come with the inputs. What the
        user allows for these is in the module: `JSONGraph.bounds`, or what codegen took of `Region.bounds`.
        Asked at compile, where what it raises breaks the backend's contract and the region runs elsewhere, and at load,
        where that is an error. It must not need the device, which may not be where a model is compiled. Not asked of
        modules for the CPU where another kind of machine is compiled for.
        """

    def blobs(self) -> Mapping[str, bytes]:
        """Return what is compiled for this kind of machine, by name; saved with a module that runs without, too."""
        return {}

    def compatibility(self) -> str:
        """Return a token of what `blobs` depend on: versions of the library, the kind of machine."""
        return ""

    def fit(self, token: str) -> str:
        """Return how blobs with a token fit here: "optimal", "usable" (slower than those made here) or "unusable"."""
        return "optimal" if token == self.compatibility() else "unusable"

    def restore(self, blobs: Mapping[str, memoryview]) -> None:  # noqa: B027  most have none
        """Take over saved blobs that fit, before `prepare`; they are read-only, and mapped from the file.

        What it raises is a warning, and the module goes on without them.
        """

    def bind(
        self, symbol: str, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Prepare a call of `symbol` over fixed memory: `args` are inputs then outputs, `values` the symbolic dims.

        This default calls `get_function(symbol)` as a Python step.
        Raises: ExecutionError for an unknown name; NoImplementationError for a region that the backend `may_refuse`,
          where the library has no implementation for these sizes.
        """
        function = self.get_function(symbol)
        if accepts_symbols(function):
            return BoundCall([partial(function, *(arg.as_array() for arg in args), symbols=dict(values))])
        return BoundCall([partial(function, *map(_exchangeable, args))])

    def native_kernel(self, symbol: str) -> NativeKernel | None:
        """Return a function's code where `bind` does nothing but write addresses and numbers; else None.

        The runtime binds all such steps of a program together, which new sizes pay for. Raises: ExecutionError.
        """
        return None

    def unknown_symbol(self, symbol: str) -> ExecutionError:
        """Return the error for a function that the module does not have."""
        return ExecutionError(
            f"the {self.kind} module has no function {symbol!r}", expected=", ".join(self.symbols()) or "no functions"
        )


def accepts_symbols(function: Callable[..., Any]) -> bool:
    """Return True when a function takes the keyword `symbols`; functions of the foreign ABI never do."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return "symbols" in parameters


def _exchangeable(tensor: BoundTensor) -> Any:
    # NumPy cannot export the ml_dtypes types through DLPack; our Tensor can.
    array = tensor.as_array()
    if array.dtype.isbuiltin == 1:
        return array
    from kernelyard.runtime.device.tensor import Tensor

    return Tensor(array)


def array_at(address: int, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return a NumPy view of dense memory; the caller keeps the memory alive."""
    nbytes = memory.nbytes_of(shape, dtype)
    if not nbytes:
        return np.empty(shape, dtypes.to_numpy(dtype))
    buffer = np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), np.uint8)
    return memory.view_of(buffer, shape, dtype)
