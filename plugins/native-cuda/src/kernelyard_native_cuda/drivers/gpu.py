"""GPUs through the driver API of cuda-bindings.

Source: CUDA Driver API documentation, "Primary Context Management", "Module Management", "Memory Management",
"Execution Control".
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from kernelyard.errors import DeviceError, ExecutionError
from kernelyard.runtime import memory
from kernelyard.runtime.cuda_driver import Argument, CudaDriver, Grid, Image, Launch, LoadedKernels

INSTALL_HINT = "pip install 'kernelyard-native-cuda[cuda]', or run on kernelyard.cuda(\"emulator\")"
# A kernel gets this much dynamic shared memory without asking for more.
UNASKED_SHARED_NBYTES = 48 << 10
DRIVER_HINT = 'install NVIDIA\'s driver, or run on kernelyard.cuda("emulator")'


def bindings() -> ModuleType:
    """The module of the driver API. Raises: DeviceError with what to install."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceError(
            "CUDA devices cannot be used", found=str(error), expected="the package cuda-bindings", hint=INSTALL_HINT
        ) from error


@cache
def gpu(index: int) -> Gpu:
    """The GPU of that number, opened once. Raises: DeviceError with what is missing."""
    return Gpu(bindings(), index)


class Gpu(CudaDriver):
    """A GPU's primary context, which other libraries of the process use too, and a stream of its own.

    api: the module of the driver API.
    """

    def __init__(self, api: Any, index: int) -> None:
        self.api = api
        try:
            self.call("cuInit", 0)
            self.device = self.call("cuDeviceGet", index)
        except (
            ExecutionError,
            RuntimeError,
        ) as error:  # cuda-bindings raises RuntimeError where libcuda.so.1 is missing
            raise DeviceError(
                f"the device cuda:{index} cannot be used",
                found=getattr(error, "found", None) or str(error),
                expected="NVIDIA's driver (libcuda.so.1) and a GPU",
                hint=DRIVER_HINT,
            ) from error
        self.context = self.call("cuDevicePrimaryCtxRetain", self.device)
        self.enter()
        self.stream = int(self.call("cuStreamCreate", api.CUstream_flags.CU_STREAM_NON_BLOCKING))
        attribute = api.CUdevice_attribute
        self.capability = (
            self.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, self.device),
            self.call("cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, self.device),
        )

    def call(self, name: str, *args: Any) -> Any:
        """What a function of the driver API gives. Raises: ExecutionError naming it and its error."""
        status, *results = getattr(self.api, name)(*args)
        if int(status) != 0:
            raise ExecutionError("the CUDA driver failed", where=name, found=getattr(status, "name", str(status)))
        return results[0] if results else None

    def enter(self) -> None:
        """Make the context the calling thread's own: it has none, or another library's."""
        self.call("cuCtxSetCurrent", self.context)

    def allocate(self, nbytes: int) -> int:
        """See `DeviceDriver.allocate`. Raises: DeviceError."""
        self.enter()
        try:
            return int(self.call("cuMemAlloc", nbytes))
        except ExecutionError as error:
            raise DeviceError("the device has not enough memory", found=f"{nbytes} bytes are needed") from error

    def free(self, address: int) -> None:
        self.enter()
        self.call("cuMemFree", address)

    def upload(self, address: int, array: np.ndarray) -> None:
        if array.nbytes:
            self.enter()
            self.call("cuMemcpyHtoDAsync", address, memory.address_of(array), array.nbytes, self.stream)
            self.call("cuStreamSynchronize", self.stream)

    def download(self, address: int, array: np.ndarray) -> None:
        if array.nbytes:
            self.enter()
            self.call("cuMemcpyDtoHAsync", memory.address_of(array), address, array.nbytes, self.stream)
            self.call("cuStreamSynchronize", self.stream)

    def load(self, image: Image) -> GpuKernels:
        """See `CudaDriver.load`. Raises: DeviceError."""
        self.enter()
        return GpuKernels(self, self.call("cuModuleLoadData", fitting_cubin(image, self.capability)))


def fitting_cubin(image: Image, capability: tuple[int, int]) -> bytes:
    """The code of the newest architecture that a GPU runs: of its own major version, and no later minor.

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
            found=", ".join(image.cubins) or "CUDA text alone: there was no CUDA compiler where it was compiled",
            expected=wanted,
            hint=f'compile for Target("cuda", arch="{wanted}") where NVRTC is installed',
        )
    return max(fitting, key=lambda each: each[0])[1]


class GpuKernels(LoadedKernels):
    """A module of the driver; it stays loaded until the process ends."""

    def __init__(self, gpu: Gpu, module: Any) -> None:
        self._gpu = gpu
        self._module = module

    def prepare(self, kernel: str, grid: Grid, arguments: Sequence[Argument]) -> Launch:
        """See `LoadedKernels.prepare`."""
        gpu = self._gpu
        gpu.enter()
        function = gpu.call("cuModuleGetFunction", self._module, kernel.encode())
        if grid.shared_nbytes > UNASKED_SHARED_NBYTES:
            limit = gpu.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            gpu.call("cuFuncSetAttribute", function, limit, grid.shared_nbytes)
        words = (ctypes.c_longlong * max(len(arguments), 1))(*(argument.value for argument in arguments))
        start = ctypes.addressof(words)
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(*(start + 8 * n for n in range(len(arguments))))
        held = (pointers, words)

        def launch() -> None:
            gpu.enter()
            packed = ctypes.addressof(held[0])
            gpu.call("cuLaunchKernel", function, *grid.blocks, *grid.threads, grid.shared_nbytes, gpu.stream, packed, 0)

        return launch
