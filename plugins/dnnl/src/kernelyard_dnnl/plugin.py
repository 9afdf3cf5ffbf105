"""The hooks of kernelyard-dnnl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard.plugins.api import Backend


@hookimpl
def kernelyard_backend() -> Backend:
    """Return the backend `dnnl`."""
    from kernelyard_dnnl.backend import DnnlBackend

    return DnnlBackend()
