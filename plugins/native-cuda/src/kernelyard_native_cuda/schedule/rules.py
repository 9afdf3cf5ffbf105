"""The schedule rules in order: the first that applies wins."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.errors import CodegenError
from kernelyard.tir import PrimFunc
from kernelyard_native_cuda.codegen.kernel import WrittenKernel
from kernelyard_native_cuda.schedule.elementwise import elementwise
from kernelyard_native_cuda.schedule.fallback import fallback
from kernelyard_native_cuda.schedule.general_reduction import general_reduction
from kernelyard_native_cuda.schedule.matmul import matmul
from kernelyard_native_cuda.schedule.reduction import reduction
from kernelyard_native_cuda.schedule.rule import Rule, Schedule
from kernelyard_native_cuda.schedule.stage import Stage, make_stages
from kernelyard_native_cuda.schedule.transpose import transpose

RULES: tuple[Rule, ...] = (matmul, general_reduction, elementwise, transpose, reduction, fallback)


def schedule(function: PrimFunc, name: str) -> list[WrittenKernel]:
    """The kernels of a function, in the order in which they are launched."""
    stages = make_stages(function)
    kernels: list[WrittenKernel] = []
    while stages:
        made = _first(stages, f"{name}_{len(kernels)}")
        kernels.append(made.kernel)
        stages = stages[made.stages :]
    return kernels


def _first(stages: Sequence[Stage], name: str) -> Schedule:
    for rule in RULES:
        made = rule(stages, name)
        if made is not None:
            return made
    raise CodegenError("no schedule rule applies", found=stages[0].first.name)
