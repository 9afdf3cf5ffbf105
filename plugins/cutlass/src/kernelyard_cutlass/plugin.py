"""The hooks of kernelyard-cutlass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard.plugins.api import Backend


@hookimpl
def kernelyard_backend() -> Backend:
    """Return the backend `cutlass`."""
    from kernelyard_cutlass.backend import CutlassBackend

    return CutlassBackend()
