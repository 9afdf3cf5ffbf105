"""The LLVM module that has the text of all kernels."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard_native_cpu.codegen import threads
from kernelyard_native_cpu.machine import Machine


def module_text(functions: Sequence[str], declarations: set[str], machine: Machine, triple: str) -> str:
    """Functions and what they call as one LLVM module."""
    width = machine.vector_bits
    parts = [
        f'target triple = "{triple}"',
        threads.FUNCTIONS,
        *functions,
        *sorted({*declarations, *threads.DECLARATIONS}),
        f'attributes #0 = {{ nounwind "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" }}',
        "attributes #1 = { nounwind willreturn memory(none) }",
        "!0 = !{}",
    ]
    return "\n".join(parts) + "\n"
