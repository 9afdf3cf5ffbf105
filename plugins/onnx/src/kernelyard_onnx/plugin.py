"""The hooks of the ONNX plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard_onnx.frontend import ONNXFrontend


@hookimpl
def kernelyard_frontend() -> ONNXFrontend:
    """Return the frontend that reads ONNX models."""
    from kernelyard_onnx.frontend import ONNXFrontend

    return ONNXFrontend()
