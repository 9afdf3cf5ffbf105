"""The interface of a schedule rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelyard.plugins.codegen_api import Buffer, Declined, Stage
from kernelyard_native_cuda.codegen.kernel import WrittenKernel
from kernelyard_native_cuda.schedule.machine import Machine


@dataclass(frozen=True)
class Schedule:
    """A kernel, how many of the stages offered it does, and why it is made so.

    others: kernels that follow, or that do the same at other sizes; each of those is started with no blocks where it is
    not wanted.
    scratch: locals that the kernel needs besides the function's.
    """

    stages: int
    kernel: WrittenKernel
    reason: str
    others: tuple[WrittenKernel, ...] = ()
    scratch: tuple[Buffer, ...] = ()


# `rule(stages, name, machine)`: a kernel of that name for the first stage, or for it and some that follow.
Rule = Callable[[Sequence[Stage], str, Machine], Schedule | Declined]
