"""CudaKernels: kernels for GPUs that people wrote themselves, as a cubin.

A kernel `NAME` is `extern "C" __global__ void NAME(pointers..., sizes...)`: the data of its inputs and then of the
outputs that it fills, dense and row-major; then the sizes of each of these tensors in turn, `long long`. It is
started with at least as many threads as its first output has elements, in blocks of 256 along x.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from kernelyard.errors import DeviceError
from kernelyard.runtime import elf
from kernelyard.runtime.extern_library import KIND, SYMBOL, packed
from kernelyard.runtime.module import RuntimeModule
from kernelyard.runtime.spec import corrupted

TARGET = "cuda"
ARCH = re.compile(r"sm_[0-9]{2,3}[a-z]?\Z")


class CudaKernels(RuntimeModule):
    """Kernels of a cubin by symbol, compiled for GPUs of `arch` ("sm_90").

    It can be made, saved and loaded anywhere; calling a kernel raises DeviceError.
    Raises: ArtifactCorruptedError for what is no C identifier, or no arch.
    """

    kind: ClassVar[str] = KIND

    def __init__(self, image: bytes, symbols: Sequence[str], arch: str) -> None:
        for symbol in symbols:
            if not SYMBOL.match(symbol):
                raise corrupted(KIND, symbol, "a C identifier")
        if not ARCH.match(arch):
            raise corrupted(KIND, arch, "an arch such as sm_90")
        self._image, self._symbols, self.arch = image, tuple(symbols), arch

    def symbols(self) -> tuple[str, ...]:
        return self._symbols

    def missing(self) -> tuple[str, ...]:
        """The symbols that are no kernels of the cubin. Raises: ArtifactCorruptedError when it is none."""
        data = np.frombuffer(self._image, np.uint8)
        return tuple(symbol for symbol in self._symbols if elf.find_section(data, f".text.{symbol}") is None)

    def get_function(self, symbol: str) -> Callable[..., Any]:
        """Raises: DeviceError, as no release launches cubins of others yet; ExecutionError for an unknown name."""
        if symbol not in self._symbols:
            raise self.unknown_symbol(symbol)
        self._refuse(symbol)

    def _refuse(self, symbol: str) -> NoReturn:
        raise DeviceError(
            "external CUDA code cannot run here",
            where=symbol,
            found="a cubin: this release launches only the kernels that it generates",
            expected=f"a CUDA device of {self.arch}",
            hint='give this device C++ code: nn.SourceModule(..., source_format="cpp")',
        )

    def save_to_bytes(self) -> bytes:
        return packed({"symbols": list(self._symbols), "target": TARGET, "arch": self.arch}, self._image)

    def inspect(self) -> str:
        return f"{self.kind}: {', '.join(self._symbols)} ({TARGET} {self.arch}, {len(self._image)} bytes)"
