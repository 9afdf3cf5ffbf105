"""What a schedule rule is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelyard_native_cuda.codegen.kernel import WrittenKernel
from kernelyard_native_cuda.schedule.stage import Stage


@dataclass(frozen=True)
class Schedule:
    """A kernel, and how many of the stages offered it does."""

    stages: int
    kernel: WrittenKernel


# `rule(stages, name)`: a kernel of that name for the first stage, or for it and some that follow; None where the rule
# does not apply.
Rule = Callable[[Sequence[Stage], str], "Schedule | None"]
