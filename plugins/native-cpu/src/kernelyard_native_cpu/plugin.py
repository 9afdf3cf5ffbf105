"""The hooks of kernelyard-native-cpu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard.plugins.codegen_api import CodeGenerator


@hookimpl
def kernelyard_code_generator() -> CodeGenerator:
    """Return the code generator `native-cpu`."""
    from kernelyard_native_cpu.generator import NativeCpuGenerator

    return NativeCpuGenerator()
