"""The hooks of kernelyard-native-cuda."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard.plugins.codegen_api import CodeGenerator


@hookimpl
def kernelyard_code_generator() -> CodeGenerator:
    """Return the code generator `native-cuda`."""
    from kernelyard_native_cuda.generator import NativeCudaGenerator

    return NativeCudaGenerator()
