"""The schedule rules in order: the first that applies wins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

from kernelyard.plugins.codegen_api import (
    Buffer,
    PrimFunc,
    Reasons,
    Stage,
    element_at_zeros,
    first_that_applies,
    make_stages,
    with_common_axes,
    with_zeros,
)
from kernelyard_cuda.function_info import StepInfo
from kernelyard_native_cuda.codegen.kernel import WrittenKernel
from kernelyard_native_cuda.schedule.attention import attention
from kernelyard_native_cuda.schedule.conv import conv
from kernelyard_native_cuda.schedule.elementwise import elementwise
from kernelyard_native_cuda.schedule.fallback import fallback
from kernelyard_native_cuda.schedule.gemv import gemv
from kernelyard_native_cuda.schedule.general_reduction import general_reduction
from kernelyard_native_cuda.schedule.groups import with_groups
from kernelyard_native_cuda.schedule.low_batch_gemv import low_batch_gemv
from kernelyard_native_cuda.schedule.machine import Machine
from kernelyard_native_cuda.schedule.matmul import matmul
from kernelyard_native_cuda.schedule.padding import inline_padding
from kernelyard_native_cuda.schedule.reduction import reduction
from kernelyard_native_cuda.schedule.rule import Rule
from kernelyard_native_cuda.schedule.scan import scan
from kernelyard_native_cuda.schedule.sort import sort
from kernelyard_native_cuda.schedule.split import split_stage
from kernelyard_native_cuda.schedule.steps import at_step, create_symbol
from kernelyard_native_cuda.schedule.transpose import transpose
from kernelyard_native_cuda.schedule.wgmma import wgmma
from kernelyard_native_cuda.schedule.wgmma_attention import wgmma_attention
from kernelyard_native_cuda.schedule.wgmma_conv import wgmma_conv

RULES: tuple[Rule, ...] = (
    sort,
    scan,
    wgmma_attention,
    attention,
    gemv,
    low_batch_gemv,
    wgmma_conv,
    conv,
    wgmma,
    matmul,
    general_reduction,
    elementwise,
    transpose,
    reduction,
    fallback,
)


@dataclass(frozen=True)
class Scheduled:
    """A function as it is scheduled, whose locals are those that its kernels need, and the kernels in order.

    choices: for each time that rules were asked, those that were, each with its reason; the last one applied.
    """

    function: PrimFunc
    kernels: tuple[WrittenKernel, ...]
    choices: tuple[Reasons, ...]


def schedule(function: PrimFunc, name: str, machine: Machine) -> Scheduled:
    """Return the kernels of a function."""
    prepared = inline_padding(function)
    made = _Kernels(name, machine)
    for step, stages in groupby(stages_of(prepared), lambda stage: stage.step):
        if step is None:
            made.add(list(stages))
        else:
            info = StepInfo(create_symbol("step", prepared.symbols), step.extent)
            made.add([at_step(stage, step, info.symbol) for stage in stages], info)
    needed = PrimFunc(
        prepared.params, prepared.blocks, prepared.num_outputs, (*prepared.locals, *made.scratch), prepared.attrs
    )
    return Scheduled(needed, tuple(made.kernels), tuple(made.choices))


class _Kernels:
    """The kernels of a function, while they are made."""

    def __init__(self, name: str, machine: Machine) -> None:
        self.name = name
        self.machine = machine
        self.scratch: list[Buffer] = []
        self.kernels: list[WrittenKernel] = []
        self.choices: list[Reasons] = []

    def add(self, stages: list[Stage], step: StepInfo | None = None) -> None:
        """Add the kernels of some stages, that are launched for a step."""
        stages = list(map(with_groups, stages))
        rest: Stage | None = None  # of what was split: it is not split again
        while stages:
            is_alone = len(stages) == 1 and stages[0] is not rest
            split = split_stage(stages[0], self._next_name, self.machine, is_alone)
            if split is not None:
                rest = split[1]
                stages = [*split[:2], *stages[1:]]
                self.scratch.append(split[2])
            made, reasons = first_that_applies(RULES, stages, self._next_name, self.machine)
            rule, reason = reasons[-1]
            first = replace(made.kernel, text=f"// {rule}: {reason}\n{made.kernel.text}")
            self.kernels += (replace(kernel, step=step) for kernel in (first, *made.others))
            self.scratch += made.scratch
            self.choices.append(reasons)
            stages = stages[made.stages :]

    @property
    def _next_name(self) -> str:
        return f"{self.name}_{len(self.kernels)}"


def stages_of(function: PrimFunc) -> list[Stage]:
    """Return a function's blocks in stages; what they read at axes of extent 1 is read at 0."""
    blocks = (with_zeros(with_common_axes(block)) for block in function.blocks)
    return make_stages(blocks, function.locals, element_at_zeros)
