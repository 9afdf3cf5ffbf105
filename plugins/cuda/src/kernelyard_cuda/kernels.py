"""CudaKernels: kernels for GPUs that people wrote themselves, as a cubin.

A kernel `NAME` is `extern "C" __global__ void NAME(pointers..., sizes...)`: the data of its inputs and then of the
outputs that it fills, dense and row-major; then the sizes of each of these tensors in turn, `long long`. It is
started with a grid of its own, or with at least as many threads as its first output has elements, in blocks of 256
along x.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from kernelyard.errors import DeviceError
from kernelyard.runtime.abi.module import BindContext, BoundCall, BoundTensor, RuntimeModule
from kernelyard.runtime.abi.spec import corrupted
from kernelyard.runtime.artifact import elf
from kernelyard.runtime.modules.extern_library import SYMBOL
from kernelyard.runtime.modules.packed_module import pack_module, unpack_module
from kernelyard_cuda.driver_api import Argument, CudaDriver, Grid, Image, LoadedKernels, require_cuda
from kernelyard_cuda.function_info import LaunchInfo, read_launch

KIND = "cuda_kernels"
SCHEMA = 1
ARCH = re.compile(r"sm_[0-9]{2,3}[a-z]?\Z")
THREADS = 256


def size_symbol(argument: int, axis: int) -> str:
    """Return the name of a size of an argument in grids; outputs follow inputs."""
    return f"argument{argument}_{axis}"


class CudaKernels(RuntimeModule):
    """Kernels of a cubin by symbol, compiled for GPUs of `arch` ("sm_90").

    source: the CUDA source that it was compiled from, for the emulator; it may be missing. grids: of those symbols that
    have one of their own, over the symbolic sizes `size_symbol(argument, axis)`. It can be made, saved and loaded
    anywhere. Raises: ArtifactCorruptedError for what is no C identifier, no arch, or a grid of no kernel.
    """

    kind: ClassVar[str] = KIND
    device_kind: ClassVar[str] = "cuda"
    is_capturable: ClassVar[bool] = True

    def __init__(
        self, image: bytes, symbols: Sequence[str], arch: str, source: str = "", grids: Sequence[LaunchInfo] = ()
    ) -> None:
        for symbol in symbols:
            if not SYMBOL.match(symbol):
                raise corrupted(KIND, symbol, "a C identifier")
        if not ARCH.match(arch):
            raise corrupted(KIND, arch, "an arch such as sm_90")
        self._code, self._symbols, self.arch = image, tuple(symbols), arch
        self._grids = {grid.kernel: grid for grid in grids}
        if not self._grids.keys() <= {*symbols}:
            raise corrupted(KIND, f"grids of {', '.join(self._grids)}", f"grids of {', '.join(symbols)}")
        self._image = Image(source, self._symbols, {arch: image})
        self._loaded: dict[CudaDriver, LoadedKernels] = {}
        self._lock = Lock()

    def symbols(self) -> tuple[str, ...]:
        return self._symbols

    def missing(self) -> tuple[str, ...]:
        """Return the symbols that are no kernels of the cubin. Raises: ArtifactCorruptedError when it is none."""
        data = np.frombuffer(self._code, np.uint8)
        return tuple(symbol for symbol in self._symbols if elf.find_section(data, f".text.{symbol}") is None)

    def get_function(self, symbol: str) -> Callable[..., Any]:
        """Refuse to run on the host. Raises: DeviceError; ExecutionError for an unknown name."""
        if symbol not in self._symbols:
            raise self.unknown_symbol(symbol)
        raise DeviceError(
            "CUDA kernels cannot be called with host arrays",
            where=symbol,
            expected=f"a program on a CUDA device of {self.arch}, or on the emulator",
        )

    def bind(
        self, symbol: str, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Return the start of a kernel. Raises: DeviceError, ExecutionError."""
        if symbol not in self._symbols:
            raise self.unknown_symbol(symbol)
        driver = require_cuda(context.device, symbol)
        with self._lock:
            if driver not in self._loaded:
                self._loaded[driver] = driver.load(self._image)
        grid = self._grid(symbol, args, context)
        if grid is None:  # a grid of nothing is an error to the driver
            return BoundCall([])
        pointers = [Argument(arg.address, arg.nbytes) for arg in args]
        sizes = [Argument(size) for arg in args for size in arg.shape]
        launch = self._loaded[driver].prepare(symbol, grid, [*pointers, *sizes])
        rebind = {number: partial(launch.move, number) for number in range(len(args))}
        return BoundCall([launch], [self], rebind)

    def _grid(self, symbol: str, args: Sequence[BoundTensor], context: BindContext) -> Grid | None:
        """Return the launch grid, None where it is empty. Raises: ExecutionError for too many blocks."""
        if symbol not in self._grids:
            elements = math.prod(args[len(args) - context.num_outputs].shape)
            return Grid((-(-elements // THREADS), 1, 1), (THREADS, 1, 1)) if elements else None
        sizes = {size_symbol(n, axis): size for n, arg in enumerate(args) for axis, size in enumerate(arg.shape)}
        return self._grids[symbol].grid(sizes)

    def save_to_bytes(self) -> bytes:
        fields: dict[str, Any] = {"symbols": list(self._symbols), "arch": self.arch, "source": self._image.source}
        if self._grids:
            fields["grids"] = [grid.to_json() for grid in self._grids.values()]
        return pack_module(b"", SCHEMA, fields, (self._code,))

    def inspect(self) -> str:
        return f"{self.kind}: {', '.join(self._symbols)} ({self.arch}, {len(self._code)} bytes)"


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> RuntimeModule:
    """Load the module that `save_to_bytes` wrote; its code is loaded when it is first used.

    Raises: ArtifactCorruptedError, ArtifactVersionError.
    """
    fields, code = unpack_module(data, b"", SCHEMA, KIND)
    grids = fields.each("grids", lambda item, where: read_launch(item, where, 0)) if "grids" in fields else ()
    return CudaKernels(bytes(code), fields.texts("symbols"), fields.text("arch"), fields.text("source"), grids)
