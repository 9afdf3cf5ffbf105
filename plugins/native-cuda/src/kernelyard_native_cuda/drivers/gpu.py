"""GPUs through the driver API of cuda-bindings.

Source: CUDA Driver API documentation, "Primary Context Management", "Module Management", "Memory Management",
"Execution Control", "Stream Ordered Memory Allocator", "Graph Management".
"""

from __future__ import annotations

import ctypes
import importlib
import re
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from ctypes import addressof
from functools import cache
from threading import Lock, local
from types import ModuleType
from typing import Any, Literal

import numpy as np

from kernelyard.errors import DeviceError, ExecutionError
from kernelyard.runtime.api import Device, EnvironmentVariable, address_of
from kernelyard_cuda.driver_api import Argument, CudaDriver, Grid, Image, Launch, LoadedKernels, TensorMap
from kernelyard_native_cuda.drivers.staging import Staging
from kernelyard_native_cuda.drivers.tensor_maps import EncodedMap

INSTALL_HINT = "pip install 'kernelyard-native-cuda[cuda]', or run on kernelyard.cuda(\"emulator\")"
# A kernel gets this much dynamic shared memory without asking for more.
UNASKED_SHARED_NBYTES = 48 << 10
WORD = 8  # bytes of an argument
LEGACY_STREAM = 1  # the handle CU_STREAM_LEGACY
STREAM_CAPTURE_IMPLICIT = 906  # the legacy default stream's answer while a stream captures that waits for it
NO_WAITING = -1  # of DLPack, in the place of a stream
SYNC_VARIABLE = EnvironmentVariable(
    "KERNELYARD_CUDA_SYNC", "1: wait for each kernel on a GPU, so that an error names the kernel that failed", "off"
)
SYNC_HINT = f"a kernel failed, possibly an earlier one: set {SYNC_VARIABLE}=1 to synchronize after each launch"
# Illegal address, hardware stack error, illegal instruction, misaligned address, invalid address space, invalid program
# counter, launch failed: a later call than the launch may give them.
KERNEL_FAULTS = frozenset((700, 714, 715, 716, 717, 718, 719))
DRIVER_HINT = 'install NVIDIA\'s driver, or run on kernelyard.cuda("emulator")'


def bindings() -> ModuleType:
    """Return the module of the driver API. Raises: DeviceError with what to install."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceError(
            "CUDA devices are unavailable", found=str(error), expected="the package cuda-bindings", hint=INSTALL_HINT
        ) from error


@cache
def gpu(index: int) -> Gpu:
    """Return the GPU of that number, opened once. Raises: DeviceError with what is missing."""
    return Gpu(bindings(), index)


class Gpu(CudaDriver):
    """A GPU's primary context, which other libraries of the process use too, and a stream of its own.

    api: the module of the driver API. is_synchronous: each launch is waited for, and nothing is captured.
    """

    dlpack_type = 2  # kDLCUDA

    def __init__(self, api: Any, index: int) -> None:
        self.api, self.index = api, index
        self.is_synchronous = SYNC_VARIABLE.get() == "1"
        self._local = local()  # stream: where the calling thread's work goes instead, while it is captured
        self._capturing = Lock()
        self._freed_later: deque[tuple[int, Collection[int | None]]] = deque()
        self._idle_events: list[Any] = []
        try:
            self.call("cuInit", 0)
            self.number = self.call("cuDeviceGet", index)
        except (ExecutionError, RuntimeError) as error:  # RuntimeError: libcuda.so.1 is missing
            raise DeviceError(
                f"the device cuda:{index} cannot be used",
                found=getattr(error, "found", None) or str(error),
                expected="NVIDIA's driver (libcuda.so.1) and a GPU",
                hint=DRIVER_HINT,
            ) from error
        self.context = self.call("cuDevicePrimaryCtxRetain", self.number)
        self.enter()
        flag = api.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = int(self.call("cuStreamCreate", flag))
        self._capture_stream = int(self.call("cuStreamCreate", flag))
        self.capability = (self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR"))
        self._pool = self._make_pool() if self._attribute("MEMORY_POOLS_SUPPORTED") else None
        self._staging = Staging(self)

    def call(self, name: str, *args: Any) -> Any:
        """Call a function of the driver API. Raises: ExecutionError naming it and its error."""
        answer = getattr(self.api, name)(*args)
        self.check(name, answer[0])
        return answer[1] if len(answer) > 1 else None

    def check(self, name: str, status: Any) -> None:
        """Raise an error that names a function of the driver API and the error that it gave, if it gave one."""
        if int(status) != 0:
            found, hint = getattr(status, "name", str(status)), SYNC_HINT if int(status) in KERNEL_FAULTS else None
            raise ExecutionError("the CUDA driver failed", where=name, found=found, hint=hint)

    def _attribute(self, name: str) -> int:
        attribute = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return self.call("cuDeviceGetAttribute", attribute, self.number)

    def _make_pool(self) -> Any:
        """Return a pool that keeps what is given back: the system is asked for memory only while a program grows."""
        properties = self.api.CUmemPoolProps()
        properties.allocType = self.api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = self.api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.index
        pool = self.call("cuMemPoolCreate", properties)
        threshold = self.api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.call("cuMemPoolSetAttribute", pool, threshold, self.api.cuuint64_t((1 << 64) - 1))
        return pool

    @property
    def stream(self) -> int:
        """See `CudaDriver.stream`."""
        return getattr(self._local, "stream", None) or self._stream

    @property
    def dlpack_stream(self) -> int:
        """See `DeviceDriver.dlpack_stream`."""
        return self._stream

    def devices(self) -> tuple[Device, ...]:
        """See `DeviceDriver.devices`: all GPUs that the driver shows to this process."""
        return tuple(Device(self.kind, index) for index in range(int(self.call("cuDeviceGetCount"))))

    def enter(self) -> None:
        """Make the context the calling thread's own: it has none, or another library's."""
        self.call("cuCtxSetCurrent", self.context)

    def allocate(self, nbytes: int) -> int:
        """See `DeviceDriver.allocate`. Raises: DeviceError."""
        self.enter()
        if self._freed_later and getattr(self._local, "stream", None) is None:
            self._free_collected()
        try:
            if self._pool is None:
                return int(self.call("cuMemAlloc", nbytes))
            return int(self.call("cuMemAllocFromPoolAsync", nbytes, self._pool, self._stream))
        except ExecutionError as error:
            raise DeviceError(
                "not enough memory on the device", found=f"{nbytes} bytes are needed: {error.found}"
            ) from error

    def free(self, address: int, is_shared: bool = False) -> None:
        """See `DeviceDriver.free`. What is collected in the middle of a capture is freed at its end."""
        self.free_after(address, (NO_WAITING,) if is_shared else ())

    def free_after(self, address: int, streams: Collection[int | None]) -> None:
        """See `DeviceDriver.free_after`: our stream waits for them, and nobody else does.

        Readers who wanted no waiting did not say where they read, and streams may be gone: then the host waits for all
        work.
        """
        self.enter()
        states = {stream: self._capture_state(_handle(stream)) for stream in streams if stream != NO_WAITING}
        if getattr(self._local, "stream", None) is not None or "captures" in states.values():
            self._freed_later.append((address, streams))
            return
        if len(states) < len(streams) or "gone" in states.values():
            self.call("cuCtxSynchronize")
        else:
            for stream in streams:
                self._order(_handle(stream), self._stream)
        if self._pool is None:
            self.call("cuMemFree", address)
        else:
            self.call("cuMemFreeAsync", address, self._stream)

    def upload(self, address: int, array: np.ndarray) -> None:
        if array.nbytes:
            self.enter()
            self._staging.upload(address, array)

    def download(self, address: int, array: np.ndarray) -> None:
        if array.nbytes:
            self.enter()
            self.call("cuMemcpyDtoHAsync", address_of(array), address, array.nbytes, self.stream)
            self.call("cuStreamSynchronize", self.stream)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        if nbytes:
            self.enter()
            self.call("cuMemcpyDtoDAsync", to, source, nbytes, self.stream)

    def synchronize(self) -> None:
        self.enter()
        self.call("cuStreamSynchronize", self._stream)

    def share_with(self, stream: int | None) -> None:
        """See `DeviceDriver.share_with`. -1 wants no waiting, None is the legacy default stream."""
        if stream != NO_WAITING:
            self.enter()
            self._order(self._stream, _handle(stream))

    def wait_for(self, stream: int) -> None:
        """See `DeviceDriver.wait_for`."""
        self.enter()
        self._order(stream, self._stream)

    def _order(self, first: int, then: int) -> None:
        """Let what is put on a stream from now on wait for what is on another one."""
        try:  # an event of one's own: the collector of garbage may call this in the midst of itself
            event = self._idle_events.pop()
        except IndexError:
            event = self.call("cuEventCreate", self.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self.call("cuEventRecord", event, first)
        self.call("cuStreamWaitEvent", then, event, 0)
        self._idle_events.append(event)  # the wait is for what was recorded before, whatever is recorded later

    def _capture_state(self, stream: int) -> Literal["works", "captures", "gone"]:
        """Return what a stream of others does: while it captures, our stream must not wait for it."""
        status, *found = self.api.cuStreamIsCapturing(stream)
        if int(status) == STREAM_CAPTURE_IMPLICIT or (int(status) == 0 and int(found[0]) != 0):
            return "captures"
        return "works" if int(status) == 0 else "gone"

    def capture(self, run: Callable[[], None]) -> Graph | None:
        """See `DeviceDriver.capture`: a CUDA graph."""
        if self.is_synchronous:
            return None
        self.enter()
        try:
            graph = self._capture(run)
        finally:
            self._free_collected()
        try:
            return Graph(self, self.call("cuGraphInstantiate", graph, 0))
        finally:
            self.call("cuGraphDestroy", graph)

    def _capture(self, run: Callable[[], None]) -> Any:
        mode = self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with self._capturing:
            self.call("cuStreamBeginCapture", self._capture_stream, mode)
            self._local.stream = self._capture_stream
            try:
                run()
            except BaseException:
                self.api.cuStreamEndCapture(self._capture_stream)  # which fails too; the stream is usable again
                raise
            finally:
                self._local.stream = None
            return self.call("cuStreamEndCapture", self._capture_stream)

    def _free_collected(self) -> None:
        """Free what was collected while this thread captured, or another one."""
        with suppress(IndexError):  # the last may be another thread's to free
            for _ in range(len(self._freed_later)):
                self.free_after(*self._freed_later.popleft())

    def load(self, image: Image) -> GpuKernels:
        """See `CudaDriver.load`. Raises: DeviceError."""
        self.enter()
        return GpuKernels(self, self.call("cuModuleLoadData", fitting_cubin(image, self.capability)))


def _handle(stream: int | None) -> int:
    """Return the handle of a stream as DLPack numbers it."""
    return LEGACY_STREAM if stream is None else stream


class Graph:
    """A captured sequence of work; calling it puts all of it on the GPU's stream."""

    def __init__(self, gpu: Gpu, handle: Any) -> None:
        self._gpu, self._handle = gpu, handle
        weakref.finalize(self, gpu.api.cuGraphExecDestroy, handle)

    def __call__(self) -> None:
        self._gpu.enter()
        self._gpu.call("cuGraphLaunch", self._handle, self._gpu.stream)


def fitting_cubin(image: Image, capability: tuple[int, int]) -> bytes:
    """Return the code of the newest architecture that a GPU runs: of its own major version, and no later minor.

    Raises: DeviceError with the arch to compile for.
    """
    fitting: list[tuple[int, bytes]] = []
    for arch, cubin in image.cubins.items():
        numbers = re.fullmatch(r"sm_([0-9]+)([0-9])(a?)", arch)
        if numbers is None:
            continue
        major, minor = int(numbers[1]), int(numbers[2])
        if major == capability[0] and (minor == capability[1] if numbers[3] else minor <= capability[1]):
            fitting.append((minor, cubin))
    if not fitting:
        wanted = f"sm_{capability[0]}{capability[1]}"
        raise DeviceError(
            "the program has no code for this GPU",
            found=", ".join(image.cubins) or "CUDA source alone: there was no CUDA compiler where it was compiled",
            expected=wanted,
            hint=f'compile for Target("cuda", arch="{wanted}") where NVRTC is installed',
        )
    return max(fitting, key=lambda each: each[0])[1]


class GpuKernels(LoadedKernels):
    """A module of the driver; it stays loaded until the process ends."""

    def __init__(self, gpu: Gpu, module: Any) -> None:
        self._gpu = gpu
        self._module = module
        self._functions: dict[str, tuple[Any, int]] = {}  # with the dynamic shared memory that each may have

    def prepare(self, kernel: str, grid: Grid, arguments: Sequence[Argument], maps: Sequence[TensorMap] = ()) -> Launch:
        """See `LoadedKernels.prepare`."""
        function, most = self._functions.get(kernel) or (self._find(kernel), UNASKED_SHARED_NBYTES)
        if grid.shared_nbytes > most:
            most, gpu = grid.shared_nbytes, self._gpu
            limit = gpu.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            gpu.enter()
            gpu.call("cuFuncSetAttribute", function, limit, most)
        self._functions[kernel] = function, most
        return GpuLaunch(self._gpu, kernel, function, grid, arguments, maps)

    def _find(self, kernel: str) -> Any:
        self._gpu.enter()
        return self._gpu.call("cuModuleGetFunction", self._module, kernel.encode())


@cache
def _array_types(count: int) -> tuple[type[ctypes.Array[ctypes.c_longlong]], type[ctypes.Array[ctypes.c_void_p]]]:
    return ctypes.c_longlong * count, ctypes.c_void_p * count


class GpuLaunch(Launch):
    """See `Launch`."""

    __slots__ = ("_call", "_encoded", "_gpu", "_grid", "_kernel", "_maps", "_packed", "_pointers", "_words")

    def __init__(
        self,
        gpu: Gpu,
        kernel: str,
        function: Any,
        grid: Grid,
        arguments: Sequence[Argument],
        maps: Sequence[TensorMap] = (),
    ) -> None:
        self._gpu, self._kernel, self._grid = gpu, kernel, grid
        words_type, pointers_type = _array_types(max(len(arguments) + len(maps), 1))
        self._words = words_type(*[argument[0] for argument in arguments])
        start = addressof(self._words)
        self._pointers = pointers_type(*range(start, start + WORD * len(self._words), WORD))
        self._maps = dict(enumerate(maps, len(arguments)))
        self._encoded: dict[int, EncodedMap] = {}
        for place, each in self._maps.items():
            self.move(place, each.tensor.value)
        self._call = (function, *grid.blocks, *grid.threads, grid.shared_nbytes)
        self._packed = addressof(self._pointers)

    def __call__(self) -> None:
        gpu = self._gpu
        gpu.enter()
        status = gpu.api.cuLaunchKernel(*self._call, gpu.stream, self._packed, 0)[0]
        if int(status) != 0 or gpu.is_synchronous:
            self._check(status)

    def _check(self, status: Any) -> None:
        """Raise an error that names the kernel and its grid, where the launch, or the kernel, failed."""
        gpu, grid = self._gpu, self._grid
        try:
            gpu.check("cuLaunchKernel", status)
            gpu.synchronize()
        except ExecutionError as error:
            raise ExecutionError(
                "a CUDA kernel failed",
                where=f"{self._kernel}<<<{grid.blocks}, {grid.threads}, {grid.shared_nbytes}>>>",
                found=f"{error.where}: {error.found}",
                hint=None if gpu.is_synchronous else error.hint,
            ) from error

    def move(self, place: int, address: int) -> None:
        if place in self._maps:
            self._encoded[place] = EncodedMap(self._gpu, self._maps[place], address)
            self._pointers[place] = self._encoded[place].place
        else:
            self._words[place] = address
