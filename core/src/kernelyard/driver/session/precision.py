"""In which precision a model is computed: the names that users choose from, and the pipeline that each stands for."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

from kernelyard.errors import OptionError, PerformanceWarning, did_you_mean, warn_caller
from kernelyard.ir import IRModule
from kernelyard.runtime.installed.processor import processor
from kernelyard.target import Target
from kernelyard.transform.pipelines import get_pipeline

DEFAULT = "float32"
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # of x86-64, and of ARM


@dataclass(frozen=True)
class Precision:
    """A choice between accuracy, speed and memory.

    pipeline: what is done to a simplified model, before it is placed; None where nothing is. instructions: of these a
    CPU must have one to be quick with it, as Linux calls them; none where every CPU is.
    """

    name: str
    pipeline: str | None = None
    instructions: tuple[str, ...] = ()

    def apply(self, module: IRModule) -> IRModule:
        """Return the module in this precision; its entry functions take and give what they did."""
        return get_pipeline(self.pipeline)(module) if self.pipeline is not None else module

    def warn_where_slow(self, target: Target) -> None:
        """Warn with PerformanceWarning where the target's CPU is not known to have the instructions: results are right
        there, and slow."""
        if target.kind != "cpu" or not self.instructions or set(self.instructions) & cpu_flags(target):
            return
        names = " or ".join(self.instructions)
        message = f"precision {self.name!r} is slow without {names}, which {target} is not known to have"
        warn_caller(message, PerformanceWarning)


def cpu_flags(target: Target) -> frozenset[str]:
    """Return the instruction sets of the CPU that a target means, as Linux calls them; none where nobody says."""
    if target.mcpu not in (None, "native") or target.arch not in (None, platform.machine()):
        return frozenset()  # x86-64 levels have nothing for narrow floats, and of other machines nothing is known
    return processor().flags


PRECISIONS: Mapping[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision(DEFAULT),
        Precision("bf16", "bf16", BFLOAT16),
        Precision("int8_weights", "int8_weights"),
        Precision("int4_weights", "int4_weights"),
    )
}


def get_precision(name: str) -> Precision:
    """Return the precision of that name.

    Raises: OptionError with the names that there are.

    Example:
        >>> get_pipeline(get_precision("bf16").pipeline).passes[0]
        <pass to_mixed_precision>
    """
    if not isinstance(name, str) or name not in PRECISIONS:
        raise OptionError(
            f"there is no precision {name!r}",
            expected=", ".join(PRECISIONS),
            hint=did_you_mean(name, PRECISIONS),
        )
    return PRECISIONS[name]
