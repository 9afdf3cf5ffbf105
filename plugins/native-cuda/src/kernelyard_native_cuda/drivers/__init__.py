"""CUDA drivers for kernels: a GPU through cuda-bindings, or the emulator."""

from __future__ import annotations

from kernelyard.errors import DeviceError
from kernelyard_cuda.driver_api import CudaDriver

EMULATOR = "emulator"


def open_device(index: int | str) -> CudaDriver:
    """Return the device `kernelyard.cuda(index)`: a number, or "emulator".

    Raises: DeviceError with what is missing.
    """
    if index == EMULATOR:
        from kernelyard_native_cuda.drivers.emulator import emulator

        return emulator()
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise DeviceError("there is no such CUDA device", found=repr(index), expected=f'a number, or "{EMULATOR}"')
    from kernelyard_native_cuda.drivers.gpu import gpu

    return gpu(index)
