"""From placed IR to kernels: what no library took is legalized, fused and given to the target's code generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelyard.ir import IRModule
from kernelyard.plugins.code_generator import CodeGenerator
from kernelyard.runtime.module import RuntimeModule
from kernelyard.runtime.report import Kernel
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.transform.pipelines import get_pipeline


@dataclass(frozen=True)
class Generated:
    """The module with every call compiled (where a generator is there), and the kernels' modules."""

    module: IRModule
    kernel_modules: tuple[RuntimeModule, ...] = ()
    kernels: tuple[Kernel, ...] = ()


def generate(
    module: IRModule, generator: CodeGenerator | None, target: Target, options: Mapping[str, Any]
) -> Generated:
    """Legalize, fuse and generate; without a code generator nothing is done.

    Raises: LegalizeError, CodegenError.
    """
    if generator is None:
        return Generated(module)
    module = get_pipeline("legalize")(module)
    functions = {name: f for name, f in module.functions.items() if isinstance(f, PrimFunc)}
    if not functions:
        return Generated(module)
    kernels = tuple(Kernel(generator.name, name, tuple(f.attrs.get("ops", ()))) for name, f in functions.items())
    return Generated(module, (generator.generate(functions, target, options),), kernels)
