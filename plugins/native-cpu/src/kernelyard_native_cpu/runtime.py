"""The runtime half: object code is linked into the process and bound to memory; nothing is compiled here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kernelyard.runtime.api import (
    BindableModule,
    BindContext,
    BoundCall,
    BoundTensor,
    Code,
    DimValues,
    NativeCall,
    NativeKernel,
    Signature,
    pack_module,
    renewed_in_children,
    split_code,
    unpack_module,
)
from kernelyard_native_cpu import _native
from kernelyard_native_cpu.kernel_info import KernelInfo, entry_symbol, read_kernel_info
from kernelyard_native_cpu.machine import Machine, check_host_runs

if TYPE_CHECKING:
    from kernelyard.runtime.api import NativeUnit

KIND = "native-cpu"
SCHEMA = 1
_MAGIC = b"KYNATIVE"


class NativeCpuModule(BindableModule):
    """Kernels as one relocatable object or several, and what is known of each."""

    kind: ClassVar[str] = KIND
    is_thread_invariant: ClassVar[bool] = True  # sizes alone cut the work into tasks; threads only share them out

    def __init__(
        self, kernels: Sequence[KernelInfo], objects: Sequence[bytes], machine: Machine, llvm_version: str
    ) -> None:
        self._kernels = {kernel.symbol: kernel for kernel in kernels}
        self._objects = tuple(objects)
        self.machine = machine
        self.llvm_version = llvm_version
        self._lock = renewed_in_children(Lock())
        self._linked: Code | None = None

    def symbols(self) -> tuple[str, ...]:
        return tuple(self._kernels)

    def kernel(self, symbol: str) -> KernelInfo:
        """Return the metadata of a kernel. Raises: ExecutionError for an unknown name."""
        if symbol not in self._kernels:
            raise self.unknown_symbol(symbol)
        return self._kernels[symbol]

    def signature(self, symbol: str) -> Signature:
        kernel = self.kernel(symbol)
        count = len(kernel.params) - kernel.num_outputs
        return Signature(kernel.params[:count], kernel.params[count:])

    def _address(self, symbol: str) -> int:
        """Return the address of a kernel; all are linked at the first request, and live as long as the module."""
        with self._lock:
            if self._linked is None:
                check_host_runs(self.machine)
                entries = tuple(map(entry_symbol, self._kernels))
                self._linked = _native.link_objects(self._objects, entries)
            return self._linked.addresses[entry_symbol(symbol)]

    def native_kernel(self, symbol: str) -> NativeKernel:
        """See `RuntimeModule.native_kernel`. Raises: ExecutionError, BackendUnavailableError."""
        kernel = self.kernel(symbol)
        return NativeKernel(self._address(symbol), kernel.num_numbers, kernel.dims, partial(_evaluate, kernel))

    def bind(
        self, symbol: str, args: Sequence[BoundTensor], values: Mapping[str, int], context: BindContext
    ) -> BoundCall:
        """Bind one native call. Raises: ExecutionError, ShapeError, BackendUnavailableError."""
        kernel = self.native_kernel(symbol)
        known = DimValues(values)
        evaluated, nbytes = kernel.evaluate(known.shape(kernel.dims), context.threads)
        pointers = (ctypes.c_void_p * max(len(args), 1))(*(arg.address for arg in args))
        numbers = (ctypes.c_int64 * max(kernel.num_numbers, 1))(*evaluated)
        first = ctypes.addressof(pointers)
        workspace = context.workspace(nbytes) if nbytes else 0
        call = NativeCall(kernel.function, first, ctypes.addressof(numbers), context.threads, workspace)
        setters: dict[int, Callable[[int], None]] = {
            index: partial(pointers.__setitem__, index) for index in range(len(args))
        }
        slots = {index: first + ctypes.sizeof(ctypes.c_void_p) * index for index in range(len(args))}
        return BoundCall([call], [pointers, numbers, self], setters, slots=slots)

    def native_unit(self) -> NativeUnit | None:
        """See `RuntimeModule.native_unit`."""
        from kernelyard_native_cpu import c_unit  # only libraries need it

        return c_unit.native_unit(tuple(self._kernels.values()), self._objects, self.machine)

    @property
    def needs(self) -> str:
        """See `RuntimeModule.needs`."""
        return str(self.machine)

    def save_to_bytes(self) -> bytes:
        facts = {
            "llvm": self.llvm_version,
            "architecture": self.machine.architecture,
            "features": list(self.machine.features),
            "kernels": [kernel.to_json() for kernel in self._kernels.values()],
            "objects": [len(data) for data in self._objects],
        }
        return pack_module(_MAGIC, SCHEMA, facts, self._objects)

    def inspect(self) -> str:
        """Format the kernels with their parameters, and the target machine."""
        size = sum(map(len, self._objects))
        lines = [f"native-cpu: {len(self._kernels)} kernels, {size} bytes of code by LLVM {self.llvm_version}"]
        lines.append(f"  needs {self.needs}")
        lines += [f"  {symbol}{self.signature(symbol)}" for symbol in self._kernels]
        return "\n".join(lines)


def _evaluate(kernel: KernelInfo, values: Sequence[int], threads: int) -> tuple[Sequence[int], int]:
    return kernel.evaluate(values, threads if _native.openmp() else 1)


def load(data: bytes, constants: Mapping[str, np.ndarray]) -> NativeCpuModule:
    """Read what `save_to_bytes` wrote; the code is linked when it is first bound.

    Raises: ArtifactCorruptedError, ArtifactVersionError, BackendUnavailableError on a CPU that cannot run it.
    """
    fields, code = unpack_module(data, _MAGIC, SCHEMA, KIND)
    machine = Machine(fields.text("architecture"), fields.texts("features"))
    kernels = fields.each("kernels", read_kernel_info)
    objects = split_code(code, fields.indices("objects", limit=len(code) + 1), KIND)
    check_host_runs(machine)
    return NativeCpuModule(kernels, objects, machine, fields.text("llvm"))
