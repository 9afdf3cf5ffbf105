"""The hooks of the PyTorch plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard_torch.frontend import TorchFrontend


@hookimpl
def kernelyard_frontend() -> TorchFrontend:
    """Return the frontend that reads programs made by torch.export."""
    from kernelyard_torch.frontend import TorchFrontend

    return TorchFrontend()
