"""All that a compiled model needs to run; imports nothing of the compiler. Names are loaded at first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelyard.runtime.device import Device, cpu, cuda
    from kernelyard.runtime.executable import Executable
    from kernelyard.runtime.loader import load
    from kernelyard.runtime.module import RuntimeModule
    from kernelyard.runtime.tensor import Tensor
    from kernelyard.runtime.vm import VirtualMachine

_HOMES = {
    "Device": "device",
    "Executable": "executable",
    "RuntimeModule": "module",
    "Tensor": "tensor",
    "VirtualMachine": "vm",
    "cpu": "device",
    "cuda": "device",
    "load": "loader",
}

__all__ = ["Device", "Executable", "RuntimeModule", "Tensor", "VirtualMachine", "cpu", "cuda", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
