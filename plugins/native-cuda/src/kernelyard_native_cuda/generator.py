"""NativeCudaGenerator: loop-level functions -> CUDA text -> cubins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelyard.errors import TargetError, ToolchainError
from kernelyard.plugins.code_generator import CodeGenerator
from kernelyard.runtime import nvrtc
from kernelyard.runtime.cuda_compiler import CUDA, compile_cubin
from kernelyard.runtime.module import RuntimeModule
from kernelyard.runtime.spec import TensorSpec
from kernelyard.target import Target
from kernelyard.tir import Buffer, PrimFunc
from kernelyard_native_cuda.codegen.kernel import WrittenKernel
from kernelyard_native_cuda.drivers import EMULATOR, open_device
from kernelyard_native_cuda.function_info import FunctionInfo, LaunchInfo
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule.rules import schedule

PRELUDE = Path(__file__).with_name("codegen") / "prelude.cuh"
LEAST_ARCH = 80
_ARCH = re.compile(r"sm_([0-9]{2,3})a?\Z")


class NativeCudaGenerator(CodeGenerator):
    """Kernels for NVIDIA's GPUs from sm_80 on, and for the emulator; takes every loop-level function."""

    name = "native-cuda"
    targets = ("cuda",)

    def facts(self) -> Mapping[str, str]:
        """See `CodeGenerator.facts`."""
        return {"CUDA compiler": _compiler(), "cuda:0": _state(0), "cuda:emulator": _state(EMULATOR)}

    def generate(self, functions: Mapping[str, PrimFunc], target: Target, options: Mapping[str, Any]) -> RuntimeModule:
        """See `CodeGenerator.generate`. Without an arch, or where no CUDA compiler is, there is text alone."""
        _check_arch(target.arch)
        infos: list[FunctionInfo] = []
        texts: list[str] = []
        for number, (name, function) in enumerate(functions.items()):
            kernels = schedule(function, f"{re.sub('[^A-Za-z0-9_]', '_', name)}_{number}")
            infos.append(_info(name, function, kernels))
            texts += [kernel.text for kernel in kernels]
        source = "\n".join((PRELUDE.read_text(encoding="utf-8"), *texts))
        cubins: dict[str, bytes] = {}
        if target.arch is not None and compiler_is_here():
            cubins[target.arch] = compile_cubin(source, target.arch)
        return NativeCudaModule(infos, source, cubins)


def compiler_is_here() -> bool:
    """Whether cubins can be made: by nvcc or NVRTC."""
    try:
        CUDA.find()
    except ToolchainError:
        return nvrtc.find() is not None
    return True


def _info(name: str, function: PrimFunc, kernels: list[WrittenKernel]) -> FunctionInfo:
    numbers = {buffer: number for number, buffer in enumerate((*function.params, *function.locals))}
    launches = tuple(
        LaunchInfo(
            kernel.name,
            kernel.blocks,
            kernel.threads,
            tuple(numbers[each] for each in kernel.arguments if isinstance(each, Buffer)),
            tuple(each for each in kernel.arguments if not isinstance(each, Buffer)),
        )
        for kernel in kernels
    )
    params = tuple(TensorSpec(buffer.shape, buffer.dtype, buffer.name) for buffer in function.params)
    return FunctionInfo(name, params, function.num_outputs, tuple(b.nbytes for b in function.locals), launches)


def _check_arch(arch: str | None) -> None:
    if arch is None:
        return
    found = _ARCH.match(arch)
    if found is None or int(found[1]) < LEAST_ARCH:
        raise TargetError(
            "native-cuda does not know this architecture",
            found=arch,
            expected=f"sm_{LEAST_ARCH} or later, such as sm_90",
        )


def _compiler() -> str:
    try:
        return CUDA.find()[0]
    except ToolchainError as error:
        library = nvrtc.find()
        return library[0] if library else f"none: kernels stay text; {error.hint}"


def _state(index: int | str) -> str:
    from kernelyard.errors import DeviceError

    try:
        open_device(index)
    except DeviceError as error:
        return f"unavailable: {error.found}; {error.hint}"
    return "usable"
