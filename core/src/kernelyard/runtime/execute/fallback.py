"""Fallbacks: programs of generated kernels that stand in for functions of a library.

A library may have no implementation of a region for the sizes or the device at hand (NoImplementationError). The
region's fallback then takes the place of the steps that call it, before anything is run: memory planning, capture and
profiles see its steps as they see all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.errors import NoImplementationError, PerformanceWarning, warn_caller
from kernelyard.runtime.execute.step_errors import RefusedError, label_of
from kernelyard.runtime.program.execution_plan import ExecutionPlan
from kernelyard.runtime.program.program import Step
from kernelyard.runtime.program.replace_steps import replace_steps

if TYPE_CHECKING:
    from kernelyard.runtime.execute.compiled_model import CompiledModel


def fall_back(plan: ExecutionPlan, refused: RefusedError, executable: CompiledModel) -> ExecutionPlan:
    """Return the plan with fallbacks in the place of refused functions.

    Warns: PerformanceWarning, once for each function of an executable. Raises: NoImplementationError for a plan with
      jumps, whose function is interpreted instead, block by block.
    """
    if plan.program.jumps or plan.program.transfers:
        raise next(iter(refused.reasons.values()))
    chosen = {symbol: executable.fallbacks[symbol] for symbol in refused.reasons}
    with executable.lock:
        new = chosen.keys() - executable.warned_of
        executable.warned_of.update(new)
    for step in plan.program.steps:
        if step.symbol in new:
            new.discard(step.symbol)
            message = _message(plan, step, refused.reasons[step.symbol], executable)
            warn_caller(message, PerformanceWarning)
    return ExecutionPlan(replace_steps(plan.program, chosen), plan.input_shapes, plan.values)


def _message(plan: ExecutionPlan, step: Step, error: NoImplementationError, executable: CompiledModel) -> str:
    label = label_of(step, executable.modules)
    of_node = f" ({label.step})" if label.step != step.symbol else ""
    sizes = ", ".join(f"{name} = {value}" for name, value in sorted(plan.values.items()))
    kernels = ", ".join(each.symbol for each in executable.fallbacks[step.symbol].steps)
    reason = f"{error.message}{f', {sizes}' if sizes else ''}"
    return f"{label.kind} does not run {step.symbol}{of_node}: {reason}; these kernels run instead: {kernels}"
