"""From placed IR to kernels: what no library took is legalized, fused and given to the target's code generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelyard.ir import IRModule
from kernelyard.plugins.code_generator import CodeGenerator
from kernelyard.plugins.manager import get_manager
from kernelyard.runtime.module import RuntimeModule
from kernelyard.target import Target
from kernelyard.tir import PrimFunc
from kernelyard.transform.pipelines import get_pipeline


@dataclass(frozen=True)
class Generated:
    """The module with every call compiled (where a generator is installed), and the kernels' modules."""

    module: IRModule
    kernel_modules: tuple[RuntimeModule, ...]
    generator: str


def generate(module: IRModule, target: Target, options: Mapping[str, Mapping[str, Any]]) -> Generated:
    """Legalize, fuse and generate; without a code generator for the target nothing is done.

    Raises: LegalizeError, CodegenError.
    """
    generators: list[CodeGenerator] = get_manager().active("code_generator", target.kind)
    if not generators:
        return Generated(module, (), "")
    generator = generators[0]
    module = get_pipeline("legalize")(module)
    kernels = {name: f for name, f in module.functions.items() if isinstance(f, PrimFunc)}
    if not kernels:
        return Generated(module, (), generator.name)
    return Generated(module, (generator.generate(kernels, target, options.get(generator.name, {})),), generator.name)
