"""All that a compiled model needs to run; imports nothing of the compiler. Names are loaded at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.lazy import lazy_names

if TYPE_CHECKING:
    from kernelyard.runtime.abi.module import RuntimeModule as RuntimeModule
    from kernelyard.runtime.artifact.kyar import load as load
    from kernelyard.runtime.device.device import Device as Device
    from kernelyard.runtime.device.device import cpu as cpu
    from kernelyard.runtime.device.device import cuda as cuda
    from kernelyard.runtime.device.tensor import Tensor as Tensor
    from kernelyard.runtime.execute.executable import Executable as Executable
    from kernelyard.runtime.execute.virtual_machine import VirtualMachine as VirtualMachine

_HOME = {
    "kernelyard.runtime.abi.module": "RuntimeModule",
    "kernelyard.runtime.artifact.kyar": "load",
    "kernelyard.runtime.device.device": "Device cpu cuda",
    "kernelyard.runtime.device.tensor": "Tensor",
    "kernelyard.runtime.execute.executable": "Executable",
    "kernelyard.runtime.execute.virtual_machine": "VirtualMachine",
}

__getattr__ = lazy_names(__name__, _HOME)
