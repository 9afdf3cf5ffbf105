"""The hooks of kernelyard-cudnn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard.plugins.api import Backend


@hookimpl
def kernelyard_backend() -> Backend:
    """Return the backend `cudnn`."""
    from kernelyard_cudnn.backend import CudnnBackend

    return CudnnBackend()
