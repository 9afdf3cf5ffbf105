"""The hooks of kernelyard-cublas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard.plugins.api import Backend


@hookimpl
def kernelyard_backend() -> Backend:
    """Return the backend `cublas`."""
    from kernelyard_cublas.backend import CublasBackend

    return CublasBackend()
