"""GPUs without a GPU: which calls of the driver API are made, with what; and what is said where there is none."""

from __future__ import annotations

import ctypes
import gc
import sys
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernelyard.errors import DeviceError, ExecutionError
from kernelyard.runtime.abi import memory
from kernelyard.runtime.device.array import DeviceArray, import_array
from kernelyard.runtime.device.device import cuda
from kernelyard.runtime.device.tensor import Tensor
from kernelyard_cuda.driver_api import Argument, Grid, Image
from kernelyard_native_cuda.drivers import gpu as gpus
from kernelyard_native_cuda.drivers.gpu import Gpu, fitting_cubin


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


class RecordedApi:
    """The driver API of a GPU of compute capability 9.0, whose memory is the host's; graphs replay what was launched.

    has_pools: whether memory is allocated in the order of streams. fails: names of functions that fail.
    """

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED="pools",
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemPool_attribute = SimpleNamespace(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD="threshold")
    cuuint64_t = int

    def __init__(self, has_pools: bool = True) -> None:
        self.has_pools = has_pools
        self.fails: set[str] = set()
        self.calls: list[tuple[Any, ...]] = []
        self.held: dict[int, np.ndarray] = {}
        self.launched: list[list[int]] = []
        self.captured: list[list[int]] | None = None
        self.graphs: list[list[list[int]]] = []
        self.capturing: set[int] = set()
        self._streams = iter((MAIN, CAPTURE))

    @staticmethod
    def CUmemPoolProps() -> SimpleNamespace:
        return SimpleNamespace(location=SimpleNamespace())

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, *args))
            if name in self.fails:
                return (Status.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, None)
            return self._answer(name, args)

        return call

    def _answer(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if name in ("cuMemAlloc", "cuMemAllocFromPoolAsync", "cuMemAllocHost"):
            if args[0] > 1 << 30:
                return (Status.CUDA_ERROR_OUT_OF_MEMORY, None)
            array = memory.aligned_bytes(args[0])
            self.held[memory.address_of(array)] = array
            return (Status.CUDA_SUCCESS, memory.address_of(array))
        if name in ("cuMemFree", "cuMemFreeAsync"):
            del self.held[args[0]]
        if name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync"):
            ctypes.memmove(*args[:3])
        if name == "cuLaunchKernel":
            pointers = (ctypes.c_void_p * 3).from_address(args[-2])
            words = [ctypes.c_longlong.from_address(pointer or 0).value for pointer in pointers]
            (self.launched if args[8] == MAIN or self.captured is None else self.captured).append(words)
        if name == "cuStreamBeginCapture":
            self.captured = []
        if name == "cuStreamEndCapture":
            self.graphs.append(self.captured or [])
            self.captured = None
            return (Status.CUDA_SUCCESS, len(self.graphs) - 1)
        if name == "cuGraphInstantiate":
            return (Status.CUDA_SUCCESS, args[0])
        if name == "cuGraphLaunch":
            self.launched += self.graphs[args[0]]
        if name == "cuStreamIsCapturing":
            return (Status.CUDA_SUCCESS, int(args[0] in self.capturing))
        if name == "cuDeviceGetCount":
            return (Status.CUDA_SUCCESS, 3)
        if name == "cuStreamCreate":
            return (Status.CUDA_SUCCESS, next(self._streams))
        if name == "cuDeviceGetAttribute":
            return (Status.CUDA_SUCCESS, {"major": 9, "minor": 0, "pools": int(self.has_pools)}[args[0]])
        gives = ("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction")
        gives += ("cuEventCreate", "cuMemPoolCreate")
        return (Status.CUDA_SUCCESS, name) if name in gives else (Status.CUDA_SUCCESS,)

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


MAIN, CAPTURE = 77, 78  # streams


@pytest.fixture
def api() -> RecordedApi:
    return RecordedApi()


def test_a_device_is_opened_in_its_primary_context(api):
    gpu = Gpu(api, 1)
    assert api.calls[:3] == [("cuInit", 0), ("cuDeviceGet", 1), ("cuDevicePrimaryCtxRetain", "cuDeviceGet")]
    assert gpu.capability == (9, 0)


@pytest.mark.parametrize("has_pools", [True, False])
def test_memory_and_copies(has_pools):
    api = RecordedApi(has_pools)
    gpu = Gpu(api, 0)
    address, other = gpu.allocate(64), gpu.allocate(64)
    given, found = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    gpu.upload(address, given)
    gpu.copy(other, address, 64)
    gpu.download(other, found)
    np.testing.assert_array_equal(found, given)
    gpu.upload(address, np.empty(0, np.float32))
    gpu.copy(other, address, 0)
    gpu.free(address)
    assert address not in api.held
    names = api.names()
    assert [name for name in names if name.startswith("cuMemcpy")] == [
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoDAsync",
        "cuMemcpyDtoHAsync",
    ]
    assert ("cuMemAllocFromPoolAsync" in names, "cuMemFreeAsync" in names) == (has_pools, has_pools)
    with pytest.raises(DeviceError, match="not enough memory"):
        gpu.allocate(1 << 31)


def test_small_arrays_go_through_page_locked_memory_and_nobody_waits(api):
    gpu = Gpu(api, 0)
    small, large = np.arange(1000, dtype=np.int64), np.arange(1 << 17, dtype=np.int64)
    places = [gpu.allocate(small.nbytes) for _ in range(40)]
    for number, place in enumerate(places):
        gpu.upload(place, small + number)
    assert "cuStreamSynchronize" not in api.names()
    for number, place in enumerate(places):
        found = np.empty_like(small)
        gpu.download(place, found)
        np.testing.assert_array_equal(found, small + number)
    before = api.names().count("cuStreamSynchronize")
    gpu.upload(gpu.allocate(large.nbytes), large)
    assert api.names().count("cuStreamSynchronize") == before + 1  # the array may change once `upload` returns


def test_what_others_read_is_freed_after_their_work(api):
    gpu = Gpu(api, 0)
    array = DeviceArray.of(gpu, np.arange(3, dtype=np.float32))
    capsule = array.__dlpack__(stream=5)
    assert [call[1:] for call in api.calls if call[0] == "cuStreamWaitEvent"] == [(5, "cuEventCreate", 0)]
    address = array.address
    del array
    gc.collect()
    assert address in api.held  # the capsule keeps it
    del capsule
    gc.collect()
    assert address not in api.held
    free = next(number for number, call in enumerate(api.calls) if call[:2] == ("cuMemFreeAsync", address))
    assert api.calls[free - 2 : free] == [
        ("cuEventRecord", "cuEventCreate", 5),
        ("cuStreamWaitEvent", MAIN, "cuEventCreate", 0),
    ]
    assert not {"cuCtxSynchronize", "cuStreamSynchronize"} & {*api.names()}


def shared(gpu: Gpu, stream: int) -> int:
    """The address of an array that a stream has read, and that nobody has any more."""
    array = DeviceArray.of(gpu, np.arange(3, dtype=np.float32))
    address = array.address
    array.__dlpack__(stream=stream)
    return address


def test_readers_that_did_not_say_where_they_read_are_waited_for(api):
    gpu = Gpu(api, 0)
    address = shared(gpu, -1)
    gc.collect()
    assert address not in api.held
    assert "cuCtxSynchronize" in api.names()


def test_readers_whose_stream_is_gone_are_waited_for(api):
    gpu = Gpu(api, 0)
    api.fails.add("cuStreamIsCapturing")
    address = shared(gpu, 5)
    gc.collect()
    assert address not in api.held
    assert "cuCtxSynchronize" in api.names()


def test_what_a_capturing_stream_read_is_freed_after_its_capture(api):
    """Waiting for such a stream would make ours a part of the graph."""
    gpu = Gpu(api, 0)
    api.capturing.add(5)
    address = shared(gpu, 5)
    gc.collect()
    gpu.allocate(64)
    assert "cuMemFreeAsync" not in api.names()
    assert ("cuEventRecord", "cuEventCreate", 5) not in api.calls
    api.capturing.clear()
    gpu.allocate(64)
    assert ("cuMemFreeAsync", address, MAIN) in api.calls
    assert "cuCtxSynchronize" not in api.names()


def test_devices_are_those_of_the_driver(api):
    assert list(map(str, Gpu(api, 1).devices())) == ["cuda:0", "cuda:1", "cuda:2"]


class Foreign:
    """A tensor of another library in the GPU's memory."""

    def __init__(self, array: DeviceArray) -> None:
        self._array, self.streams = array, []

    def __dlpack__(self, *, stream: int) -> Any:
        self.streams.append(stream)
        return self._array.__dlpack__(stream=-1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_tensors_of_others_are_taken_in_where_they_lie(api):
    gpu, other = Gpu(api, 0), Gpu(RecordedApi(), 1)
    array = DeviceArray.of(gpu, np.arange(6, dtype=np.float16).reshape(2, 3))
    foreign = Foreign(array)
    found = import_array(gpu, foreign)
    assert found is not None
    assert (found.address, found.shape, found.dtype) == (array.address, (2, 3), np.float16)
    assert foreign.streams == [MAIN]  # its producer makes this stream wait
    assert import_array(other, foreign) is None
    assert import_array(gpu, np.ones(3)) is None
    assert import_array(gpu, Tensor(array)) is array


def test_work_is_captured_and_replayed(api):
    gpu = Gpu(api, 0)
    kernels = gpu.load(Image("", ("kernel",), {"sm_90": b"code"}))
    launches = [kernels.prepare("kernel", ONE, [Argument(n, 64), Argument(n + 1, 64), Argument(0)]) for n in (1, 5)]
    graph = gpu.capture(lambda: [launch() for launch in launches] and None)
    assert api.launched == []
    launches[0].move(1, 99)  # what was captured stays
    graph()
    assert api.launched == [[1, 2, 0], [5, 6, 0]]
    launches[0]()
    assert api.launched[-1] == [1, 99, 0]
    assert ("cuGraphLaunch", 0, MAIN) in api.calls
    assert "cuGraphDestroy" in api.names()
    del graph
    gc.collect()
    assert "cuGraphExecDestroy" in api.names()


def test_a_failed_capture_leaves_the_stream_usable(api):
    gpu = Gpu(api, 0)
    kernels = gpu.load(Image("", ("kernel",), {"sm_90": b"code"}))
    launch = kernels.prepare("kernel", ONE, [Argument(1, 64), Argument(2, 64), Argument(0)])
    api.fails.add("cuLaunchKernel")
    with pytest.raises(ExecutionError, match="CAPTURE_UNSUPPORTED"):
        gpu.capture(launch)
    assert api.names()[-1] == "cuStreamEndCapture"
    api.fails.clear()
    assert gpu.stream == MAIN
    launch()
    assert api.launched == [[1, 2, 0]]


def test_what_is_collected_in_a_capture_is_freed_after_it(api):
    gpu = Gpu(api, 0)
    held = [DeviceArray.empty(gpu, (4,), np.dtype(np.float32))]
    address = held[0].address
    gpu.capture(held.clear)
    names = api.names()
    assert address not in api.held
    assert names.index("cuMemFreeAsync") > names.index("cuStreamEndCapture")


ONE = Grid((1, 1, 1), (32, 1, 1))


@pytest.mark.parametrize("shared", [0, 100 << 10])
def test_launches_pack_their_arguments_once(api, shared):
    gpu = Gpu(api, 0)
    kernels = gpu.load(Image("", ("kernel",), {"sm_90": b"code"}))
    launch = kernels.prepare(
        "kernel", Grid((7, 2, 1), (128, 1, 1), shared), [Argument(4096, 64), Argument(8192, 64), Argument(-3)]
    )
    assert ("cuModuleGetFunction", "cuModuleLoadData", b"kernel") in api.calls
    del kernels
    launch()
    launch()
    name, function, *dims_, dynamic, stream, _, extra = api.calls[-1]
    assert (name, function, dims_) == ("cuLaunchKernel", "cuModuleGetFunction", [7, 2, 1, 128, 1, 1])
    assert (dynamic, stream, extra) == (shared, MAIN, 0)
    assert ("cuFuncSetAttribute" in api.names()) == (shared > 48 << 10)  # more than a kernel gets without asking
    assert api.launched == [[4096, 8192, -3]] * 2


@pytest.mark.parametrize(
    ("archs", "capability", "expected"),
    [
        (["sm_80", "sm_90"], (9, 0), "sm_90"),
        (["sm_80", "sm_90"], (8, 9), "sm_80"),
        (["sm_80", "sm_86"], (8, 9), "sm_86"),
        (["sm_80", "sm_86"], (8, 0), "sm_80"),
        (["sm_90a"], (9, 0), "sm_90a"),
        (["sm_100", "sm_120"], (10, 3), "sm_100"),
        (["sm_80"], (9, 0), None),
        (["sm_100a"], (10, 3), None),
        (["sm_89"], (8, 6), None),
        ([], (9, 0), None),
    ],
)
def test_the_cubin_that_a_gpu_runs(archs, capability, expected):
    image = Image("", (), {arch: arch.encode() for arch in archs})
    if expected is not None:
        assert fitting_cubin(image, capability) == expected.encode()
        return
    with pytest.raises(DeviceError, match="no code for this GPU") as caught:
        fitting_cubin(image, capability)
    assert f"sm_{capability[0]}{capability[1]}" in str(caught.value.hint)


def test_without_a_gpu_one_error_says_what_is_missing(api, monkeypatch):
    monkeypatch.setattr(api, "_answer", lambda name, args: (Status.CUDA_ERROR_NO_DEVICE, None))
    with pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE") as caught:
        Gpu(api, 0)
    assert "emulator" in str(caught.value.hint)


def test_without_the_bindings_the_error_has_the_pip_line(monkeypatch):
    gpus.gpu.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(DeviceError, match=r"cuda\.bindings") as caught:
        cuda(0).require()
    assert "pip install" in str(caught.value.hint)


def test_errors_of_the_driver_name_the_call(api):
    gpu = Gpu(api, 0)
    with pytest.raises(ExecutionError, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
        gpu.call("cuMemAlloc", 1 << 40)
    assert caught.value.where == "cuMemAlloc"
