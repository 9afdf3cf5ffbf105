"""Errors of the code that a program's steps run: each names the step, the plugin with its version, and a way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernelyard.errors import ExecutionError, NoImplementationError, describe
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.module import BoundCall, NativeCall
from kernelyard.runtime.abi.runtime_halves import requirement

if TYPE_CHECKING:
    from kernelyard.runtime.abi.module import RuntimeModule
    from kernelyard.runtime.program.program import Step


class RefusedError(Exception):
    """Functions that their libraries refused for the sizes of a plan, by symbol; each of them has a fallback."""

    def __init__(self, reasons: Mapping[str, NoImplementationError]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = reasons


class StepLabel(NamedTuple):
    """A step of a program, for messages.

    step: what it runs. kind: that of its module, "" where no module runs it. symbol: the module's function.
    """

    step: str
    kind: str = ""
    symbol: str = ""


def label_of(step: Step, modules: Sequence[RuntimeModule]) -> StepLabel:
    """Return the label of a program's step."""
    return StepLabel(step.label or step.symbol, modules[step.module].kind, step.symbol)


def step_error(message: str, label: StepLabel, found: str) -> ExecutionError:
    """Return the error for a step whose code failed.

    Example:
        >>> print(step_error("a step failed", StepLabel("node 'Add_1'", "zeus"), "status 1"))
        [KY500] a step failed
          where: node 'Add_1', run by zeus
          found: status 1
    """
    owner, hint = requirement(label.kind) if label.kind else None, None
    if owner is not None and owner.distribution != "kernelyard":
        without = f"backends that leave {label.kind} out, or kernelyard -p no:{label.kind}"
        hint = f"pip install --upgrade {owner.distribution}, or compile the model again without it ({without})"
    return ExecutionError(message, where=describe_step(label), found=found, hint=hint)


def describe_step(label: StepLabel) -> str:
    """Return the step and who runs it: its module's kind, distribution and version."""
    if not label.kind:
        return label.step
    owner = requirement(label.kind)
    return f"{label.step}, run by {label.kind}" + (f" of {owner.distribution} {owner.version}" if owner else "")


def check_bound(call: object) -> BoundCall:
    """Return what a module's `bind` returned, of which the steps can be run.

    A native call without a function would be taken for a jump. Raises: TypeError, for `bind_error`.
    """
    if not isinstance(call, BoundCall):
        raise TypeError(f"it returned {type(call).__name__}, not a BoundCall")
    if not isinstance(call.steps, (list, tuple)):
        raise TypeError(f"the steps of its BoundCall are {type(call.steps).__name__}, not a list")
    for step in call.steps:
        is_native = isinstance(step, NativeCall) and hasattr(step.function, "__index__") and step.function != 0
        if not is_native and not callable(step):
            raise TypeError(f"{step!r} is no step: neither a NativeCall of a function nor something to call")
    if not (isinstance(call.rebind, Mapping) and isinstance(call.slots, Mapping)):
        raise TypeError("rebind and slots of its BoundCall are dictionaries by the number of the argument")
    return call


def bind_error(symbol: str, label: StepLabel, error: BaseException) -> ExecutionError:
    """Return the error for a module that cannot bind one of its functions."""
    message = f"the {label.kind} module cannot prepare {symbol} for these shapes"
    return step_error(message, label, describe(error))
