"""CompileOptions: what torch.compile's `options` and `mode` say to this backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

import kernelyard
from kernelyard import IRModule
from kernelyard.errors import OptionError
from kernelyard.runtime.api import Executable

# A program is replayed as a captured graph where the device has such, and nothing is measured while it is compiled:
# so all modes of PyTorch are one.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class CompileOptions:
    """Options of one call of torch.compile.

    backends, options, precision: those of `kernelyard.compile`. threads: how many a call may use (None: as many as
    PyTorch may, when the graph is compiled). freeze: parameters and buffers are constants.
    """

    backends: Sequence[str] | str = "auto"
    options: Mapping[str, Any] | None = None
    precision: str = "float32"
    threads: int | None = None
    freeze: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any] | None, mode: str | None = None) -> CompileOptions:
        """Check what a user gave. Raises: OptionError for a name or a mode that there is not."""
        chosen = dict(given or {})
        names = tuple(field.name for field in fields(cls))
        unknown = sorted(set(chosen) - set(names))
        if unknown:
            raise OptionError(
                f"the torch.compile backend kernelyard has no option {unknown[0]!r}",
                found=", ".join(unknown),
                expected=", ".join(names),
            )
        if mode is not None and mode not in MODES:
            raise OptionError(
                f"the torch.compile backend kernelyard has no mode {mode!r}", found=mode, expected=", ".join(MODES)
            )
        return cls(**chosen)

    def compile(self, module: IRModule) -> Executable:
        """Compile a graph. Raises: what `kernelyard.compile` raises."""
        executable = kernelyard.compile(module, backends=self.backends, options=self.options, precision=self.precision)
        executable.threads = self.threads or torch.get_num_threads()
        return executable
