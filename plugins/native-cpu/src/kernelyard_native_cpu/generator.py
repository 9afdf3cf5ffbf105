"""NativeCpuGenerator: loop-level functions -> LLVM -> object code for one machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kernelyard.plugins.api import Call, Cost, Match, Region, Target, Unavailable
from kernelyard.plugins.codegen_api import CodeGenerator, Packing, PrimFunc
from kernelyard.runtime.api import DiskCache, RuntimeModule
from kernelyard_llvm.module import module_text
from kernelyard_native_cpu import _native
from kernelyard_native_cpu.codegen import threads
from kernelyard_native_cpu.codegen.kernel import GeneratedKernel, generate_kernel
from kernelyard_native_cpu.costs import cost_of
from kernelyard_native_cpu.machine import Machine, architecture_of, resolve_machine
from kernelyard_native_cpu.runtime import NativeCpuModule
from kernelyard_native_cpu.schedule.back_to_back_matmul import should_tile_attention
from kernelyard_native_cpu.schedule.packing import choose_packings

# Kernels per LLVM module: what they share is compiled once, and no module grows large.
KERNELS_PER_MODULE = 32
CACHE = DiskCache("native-cpu")


class NativeCpuGenerator(CodeGenerator):
    """Kernels for the CPU; takes every loop-level function."""

    name = "native-cpu"
    targets = ("cpu",)

    def probe(self) -> Unavailable | None:
        """Return None when LLVM is there."""
        try:
            _native.llvm_version()
        except ImportError as error:
            return Unavailable(f"llvmlite cannot be imported: {error}", "pip install kernelyard-native-cpu")
        return None

    def facts(self) -> Mapping[str, str]:
        """See `CodeGenerator.facts`."""
        return {"kernel cache": str(CACHE.use())}

    def complete(self, target: Target) -> Target:
        """See `CodeGenerator.complete`: an architecture gets the name that Linux has for it. Raises: TargetError."""
        resolve_machine(target.mcpu, target.arch)
        return replace(target, arch=architecture_of(target.mcpu, target.arch)) if target.arch else target

    def widened(self, target: Target) -> tuple[str, ...]:
        """See `CodeGenerator.widened`: oneDNN and kernels compute with bfloat16 where the CPU does, never float16."""
        has_bfloat16 = resolve_machine(target.mcpu, target.arch).has_bfloat16
        return ("float16",) if has_bfloat16 else ("float16", "bfloat16")

    def multiplies_integers(self, target: Target) -> bool:
        """See `CodeGenerator.multiplies_integers`."""
        return resolve_machine(target.mcpu, target.arch).dot_instruction != ""

    def sums_in_16_bits(self, target: Target) -> bool:
        """See `CodeGenerator.sums_in_16_bits`."""
        return resolve_machine(target.mcpu, target.arch).narrow_dot_instruction == "pmaddubsw"

    def multiplies_digits(self, target: Target, bits: int) -> bool:
        """See `CodeGenerator.multiplies_digits`: `pmaddwd` takes bytes only after they are widened, and AVX2 lacks
        registers for that: a prompt of a language model took 2.5 times as long there. `pmaddubsw` takes 4 bits."""
        machine = resolve_machine(target.mcpu, target.arch)
        instruction = machine.narrow_dot_instruction if bits == 4 else machine.dot_instruction
        return instruction != "" and (instruction != "pmaddwd" or machine.vector_bits == 512)

    def packings(self, function: PrimFunc, constants: Collection[int], target: Target) -> Mapping[int, Packing]:
        """See `CodeGenerator.packings`."""
        return choose_packings(function, constants, resolve_machine(target.mcpu, target.arch))

    def fuses_attention(self, attention: Call, target: Target) -> bool:
        """See `CodeGenerator.fuses_attention`."""
        return should_tile_attention(attention)

    def cost(self, work: Match | Region, target: Target) -> Cost | None:
        """See `CodeGenerator.cost`."""
        return cost_of(work, resolve_machine(target.mcpu, target.arch))

    def generate(self, functions: Mapping[str, PrimFunc], target: Target, options: Mapping[str, Any]) -> RuntimeModule:
        """See `CodeGenerator.generate`."""
        machine = resolve_machine(target.mcpu, target.arch)
        objects = [_compile_once(write_thread_functions(machine), machine)]
        kernels: list[GeneratedKernel] = []
        names = list(functions)
        for start in range(0, len(names), KERNELS_PER_MODULE):
            chosen = {name: functions[name] for name in names[start : start + KERNELS_PER_MODULE]}
            written, text = write_module(chosen, machine)
            kernels += written
            objects.append(_compile_once(text, machine))
        return NativeCpuModule([kernel.info for kernel in kernels], objects, machine, _native.llvm_version())


def _compile_once(text: str, machine: Machine) -> bytes:
    """Return the text as object code, compiled unless it was before."""
    key = f"{_native.compilation_key(machine)}\n{text}"
    found = CACHE.get(key)
    if found is None:
        found = _native.compile_object(text, machine)
        CACHE.put(key, found)
    return found


def write_module(functions: Mapping[str, PrimFunc], machine: Machine) -> tuple[list[GeneratedKernel], str]:
    """Generate kernels of functions, and the text of an LLVM module with all of them."""
    declarations = dict(threads.DECLARATIONS)
    kernels = [generate_kernel(name, function, machine, declarations) for name, function in functions.items()]
    return kernels, _module_of((kernel.text for kernel in kernels), declarations, machine)


def write_thread_functions(machine: Machine) -> str:
    """Return the text of an LLVM module with what all kernels call to share out their tasks."""
    return _module_of([threads.FUNCTIONS], threads.POOL_DECLARATIONS, machine)


def _module_of(functions: Iterable[str], declarations: Mapping[str, str], machine: Machine) -> str:
    head = f'target triple = "{_native.triple(machine)}"'
    return module_text([head, *functions], declarations, machine.vector_bits, machine.attributes)
