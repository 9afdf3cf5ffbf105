"""All that a compiled model needs to run; imports nothing of the compiler. Names are loaded at first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelyard.runtime.abi.module import RuntimeModule
    from kernelyard.runtime.artifact.loader import load
    from kernelyard.runtime.device.device import Device, cpu, cuda
    from kernelyard.runtime.device.tensor import Tensor
    from kernelyard.runtime.execute.executable import Executable
    from kernelyard.runtime.execute.virtual_machine import VirtualMachine

_HOMES = {
    "Device": "device.device",
    "Executable": "execute.executable",
    "RuntimeModule": "abi.module",
    "Tensor": "device.tensor",
    "VirtualMachine": "execute.virtual_machine",
    "cpu": "device.device",
    "cuda": "device.device",
    "load": "artifact.loader",
}

__all__ = ["Device", "Executable", "RuntimeModule", "Tensor", "VirtualMachine", "cpu", "cuda", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
