"""NativeCudaGenerator: loop-level functions -> CUDA source -> cubins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelyard.errors import OptionError, TargetError, ToolchainError
from kernelyard.plugins.api import Target
from kernelyard.plugins.codegen_api import Buffer, CodeGenerator, PrimFunc
from kernelyard.runtime.api import RuntimeModule, TensorSpec
from kernelyard_cuda.compiler import CUDA, find_kernel_compiler
from kernelyard_cuda.default_archs import default_archs
from kernelyard_cuda.function_info import FunctionInfo, LaunchInfo, TensorMapInfo
from kernelyard_native_cuda.codegen.kernel import WrittenKernel, identifier
from kernelyard_native_cuda.drivers import EMULATOR, open_device
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule.machine import machine_of
from kernelyard_native_cuda.schedule.rules import Scheduled, schedule

PRELUDE = Path(__file__).with_name("codegen") / "prelude.cuh"
TILES = PRELUDE.with_name("tiles.cuh")
SCAN, BITONIC_SORT, RADIX_SORT = map(PRELUDE.with_name, ("scan.cuh", "bitonic_sort.cuh", "radix_sort.cuh"))
GENERATED = "// --- generated ---"
LEAST_ARCH = 80
_ARCH = re.compile(r"sm_([0-9]{2,3})a?\Z")


class NativeCudaGenerator(CodeGenerator):
    """Kernels for NVIDIA's GPUs from sm_80 on, and for the emulator; takes every loop-level function."""

    name = "native-cuda"
    targets = ("cuda",)
    composes_attention = True
    channels_last = ("float16", "bfloat16")

    def facts(self) -> Mapping[str, str]:
        """See `CodeGenerator.facts`."""
        return {"CUDA compiler": _compiler(), "cuda:0": _state(0), "cuda:emulator": _state(EMULATOR)}

    def complete(self, target: Target) -> Target:
        """See `CodeGenerator.complete`: a target without an arch gets `default_archs`."""
        return target if target.archs else replace(target, arch=",".join(default_archs()) or None)

    def generate(self, functions: Mapping[str, PrimFunc], target: Target, options: Mapping[str, Any]) -> RuntimeModule:
        """See `CodeGenerator.generate`. Without an arch in the target, or without a CUDA compiler, there is text alone.

        Option "text": whether the module carries the text beside the cubins, which the emulator needs (True). Option
        "tf32": whether matmuls of float32 may be rounded to tf32, for tensor cores (False).
        "wgmma": whether products and attention for sm_90 alone run on warp groups (True).
        "wgmma_convolutions": whether convolutions for sm_90 alone do, too (False).
        """
        for arch in target.archs:
            _check_arch(arch)
        infos: list[FunctionInfo] = []
        kernels: list[WrittenKernel] = []
        defaults = {"tf32": False, "wgmma": True, "wgmma_convolutions": False}
        machine = machine_of(target.archs, *(_option(options, name, default) for name, default in defaults.items()))
        for number, (name, function) in enumerate(functions.items()):
            scheduled = schedule(function, f"{identifier(name)}_{number}", machine)
            infos.append(_info(name, scheduled))
            kernels += scheduled.kernels
        prelude = (path.read_text(encoding="utf-8") for path in (PRELUDE, TILES, SCAN, BITONIC_SORT, RADIX_SORT))
        needs = dict.fromkeys(text for kernel in kernels for text in kernel.needs)
        source = "\n".join((*prelude, *needs, GENERATED, *(kernel.text for kernel in kernels)))
        cubins = _cubins(source, target.archs, is_for_one_arch=any(kernel.maps for kernel in kernels))
        return NativeCudaModule(infos, source if _keeps_text(options, cubins) else "", cubins)


def _cubins(source: str, archs: Sequence[str], is_for_one_arch: bool) -> dict[str, bytes]:
    """Return the cubin for each architecture, compiled in parallel; none without a compiler.

    is_for_one_arch: whether there are instructions of one architecture alone, which its name with an "a" allows. Code
    for sm_90a runs on every GPU of sm_90, which has no later minor version.
    """
    compiler = find_kernel_compiler() if archs else None
    if compiler is None:
        return {}
    with ThreadPoolExecutor(len(archs)) as pool:
        names = [f"{arch.rstrip('a')}a" if is_for_one_arch else arch for arch in archs]
        return dict(zip(archs, pool.map(lambda name: compiler.cubin(source, name), names), strict=True))


def _keeps_text(options: Mapping[str, Any], cubins: Mapping[str, bytes]) -> bool:
    keeps = _option(options, "text", True)
    if not keeps and not cubins:
        raise OptionError(
            "a program without CUDA source needs cubins",
            found="no arch in the target, or no CUDA compiler",
            expected='Target("cuda", arch="sm_90") where NVRTC is installed',
        )
    return keeps


def _option(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise OptionError(f"native-cuda's option {name} must be True or False", found=repr(value))
    return value


def compiler_is_here() -> bool:
    """Return True if nvcc or NVRTC can compile cubins."""
    return find_kernel_compiler() is not None


def _info(name: str, scheduled: Scheduled) -> FunctionInfo:
    function = scheduled.function
    numbers = {buffer: number for number, buffer in enumerate((*function.params, *function.locals))}
    launches = tuple(
        LaunchInfo(
            kernel.name,
            kernel.blocks,
            kernel.threads,
            kernel.shared_nbytes,
            tuple(numbers[each] for each in kernel.arguments if isinstance(each, Buffer)),
            tuple(each for each in kernel.arguments if not isinstance(each, Buffer)),
            kernel.step,
            tuple(TensorMapInfo(numbers[m.buffer], m.buffer.dtype, m.sizes, m.strides, m.box) for m in kernel.maps),
        )
        for kernel in scheduled.kernels
    )
    params = tuple(TensorSpec(buffer.shape, buffer.dtype, buffer.name) for buffer in function.params)
    return FunctionInfo(name, params, function.num_outputs, tuple(b.nbytes for b in function.locals), launches)


def _check_arch(arch: str) -> None:
    found = _ARCH.match(arch)
    if found is None or int(found[1]) < LEAST_ARCH:
        raise TargetError(
            "native-cuda does not know this architecture",
            found=arch,
            expected=f"sm_{LEAST_ARCH} or later, such as sm_90",
        )


def _compiler() -> str:
    try:
        compiler = find_kernel_compiler()
    except ToolchainError as error:
        return f"unusable: {error.message}: {error.found}; {error.hint}"
    return compiler.name if compiler is not None else f"none: kernels are kept as CUDA source; {CUDA.install_hint}"


def _state(index: int | str) -> str:
    from kernelyard.errors import DeviceError

    try:
        open_device(index)
    except DeviceError as error:
        return f"unavailable: {error.found}; {error.hint}"
    return "usable"
