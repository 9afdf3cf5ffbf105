"""A CUDA device whose kernels are what NVRTC makes of their source: PTX, executed by the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kernelyard.runtime.api import DLPACK_CPU
from kernelyard_cuda import nvrtc
from kernelyard_cuda.driver_api import Argument, CudaDriver, Grid, Image, Launch, LoadedKernels, TensorMap

from .errors import PtxError
from .program import GlobalMemory, Program


@lru_cache(maxsize=4)
def ptx_of(source: str, arch: str) -> str:
    """Return the PTX of kernels that include no headers but NVRTC's."""
    found = nvrtc.find()
    if found is None:
        raise PtxError("NVRTC is not installed")
    library, headers = found
    return nvrtc.compile_ptx(
        library, source, [f"--gpu-architecture={arch}", "--std=c++17", *(f"-I{h}" for h in headers)]
    )


class PtxDriver(CudaDriver):
    """Addresses are those of `memory`, not of the host."""

    index = "ptx"
    dlpack_type = DLPACK_CPU

    def __init__(self, arch: str = "sm_80") -> None:
        self.arch, self.memory = arch, GlobalMemory()
        self.capability = (int(arch[3:-1]), int(arch[-1]))

    def enter(self) -> None:
        """See `CudaDriver.enter`."""

    def allocate(self, nbytes: int) -> int:
        return self.memory.empty(nbytes)

    def free(self, address: int, is_shared: bool = False) -> None:
        self.memory.space.free(address)

    def upload(self, address: int, array: np.ndarray) -> None:
        self.memory.space.read(address, array.nbytes)[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def download(self, address: int, array: np.ndarray) -> None:
        array[...] = self.memory.get(address, array.shape, array.dtype)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self.memory.space.read(to, nbytes)[...] = self.memory.space.read(source, nbytes)

    def synchronize(self) -> None:
        """See `DeviceDriver.synchronize`: all is done when it is asked for."""

    def load(self, image: Image) -> PtxKernels:
        return PtxKernels(Program(ptx_of(image.source, self.arch), self.memory))


class PtxKernels(LoadedKernels):
    """A program on the interpreter."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def prepare(self, kernel: str, grid: Grid, arguments: Sequence[Argument], maps: Sequence[TensorMap] = ()) -> Launch:
        """See `LoadedKernels.prepare`."""
        if maps:
            raise PtxError("tensor maps are unknown")
        return PtxLaunch(self.program, kernel, grid, [argument.value for argument in arguments])


class PtxLaunch(Launch):
    """See `Launch`."""

    def __init__(self, program: Program, kernel: str, grid: Grid, arguments: list[int]) -> None:
        self.program, self.kernel, self.grid, self.arguments = program, kernel, grid, arguments

    def __call__(self) -> None:
        self.program.launch(self.kernel, *self.grid[:2], self.arguments, self.grid.shared_nbytes)

    def move(self, place: int, address: int) -> None:
        self.arguments[place] = address
