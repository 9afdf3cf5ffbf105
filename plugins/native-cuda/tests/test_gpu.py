"""GPUs without a GPU: which calls of the driver API are made, with what; and what is said where there is none."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernelyard.errors import DeviceError, ExecutionError
from kernelyard.runtime import memory
from kernelyard.runtime.cuda_driver import Argument, Grid, Image
from kernelyard.runtime.device import cuda
from kernelyard_native_cuda.drivers import gpu as gpus
from kernelyard_native_cuda.drivers.gpu import Gpu, fitting_cubin


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100


class RecordedApi:
    """The driver API of a GPU of compute capability 9.0, whose memory is the host's."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor"
    )
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.held: dict[int, np.ndarray] = {}
        self.launched: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> tuple[Any, ...]:
            self.calls.append((name, *args))
            return self._answer(name, args)

        return call

    def _answer(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == "cuMemAlloc":
            if args[0] > 1 << 30:
                return (Status.CUDA_ERROR_OUT_OF_MEMORY, None)
            array = memory.aligned_bytes(args[0])
            self.held[memory.address_of(array)] = array
            return (Status.CUDA_SUCCESS, memory.address_of(array))
        if name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
            ctypes.memmove(*args[:3])
        if name == "cuLaunchKernel":
            pointers = (ctypes.c_void_p * 3).from_address(args[-2])
            self.launched.append([ctypes.c_longlong.from_address(pointer or 0).value for pointer in pointers])
        results = {"cuDeviceGetAttribute": {"major": 9, "minor": 0}.get(args[0]) if args else None}
        if name == "cuStreamCreate":
            return (Status.CUDA_SUCCESS, 77)
        gives = ("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction")
        if name in results:
            return (Status.CUDA_SUCCESS, results[name])
        return (Status.CUDA_SUCCESS, name) if name in gives else (Status.CUDA_SUCCESS,)

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


@pytest.fixture
def api() -> RecordedApi:
    return RecordedApi()


def test_a_device_is_opened_in_its_primary_context(api):
    gpu = Gpu(api, 1)
    assert api.calls[:3] == [("cuInit", 0), ("cuDeviceGet", 1), ("cuDevicePrimaryCtxRetain", "cuDeviceGet")]
    assert gpu.capability == (9, 0)


def test_memory_and_copies(api):
    gpu = Gpu(api, 0)
    address = gpu.allocate(64)
    given, found = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    gpu.upload(address, given)
    gpu.download(address, found)
    np.testing.assert_array_equal(found, given)
    gpu.upload(address, np.empty(0, np.float32))
    gpu.free(address)
    after = api.names()[api.names().index("cuMemAlloc") :]
    copies = ["cuCtxSetCurrent", "cuMemcpyHtoDAsync", "cuStreamSynchronize"]
    assert after == [
        "cuMemAlloc",
        *copies,
        *(c.replace("HtoD", "DtoH") for c in copies),
        "cuCtxSetCurrent",
        "cuMemFree",
    ]
    with pytest.raises(DeviceError, match="not enough memory"):
        gpu.allocate(1 << 31)


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
    assert (dynamic, stream, extra) == (shared, 77, 0)
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
    def fail(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    gpus.gpu.cache_clear()
    monkeypatch.setattr(gpus.importlib, "import_module", fail)
    with pytest.raises(DeviceError, match=r"cuda\.bindings") as caught:
        cuda(0).require()
    assert "pip install" in str(caught.value.hint)


def test_errors_of_the_driver_name_the_call(api):
    gpu = Gpu(api, 0)
    with pytest.raises(ExecutionError, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
        gpu.call("cuMemAlloc", 1 << 40)
    assert caught.value.where == "cuMemAlloc"
