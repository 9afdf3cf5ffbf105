"""The hooks: imported when the plugin is first needed, and cheap; the backend is imported when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard.plugins.api import Backend


@hookimpl
def kernelyard_backend() -> Backend:
    """Return the backend."""
    from kernelyard_onnxruntime.codegen import OnnxruntimeBackend

    return OnnxruntimeBackend()
