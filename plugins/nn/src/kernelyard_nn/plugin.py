"""The hooks of the plugin for models written in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard_nn.frontend import NnFrontend


@hookimpl
def kernelyard_frontend() -> NnFrontend:
    """Return the frontend that reads modules of `kernelyard.nn`."""
    from kernelyard_nn.frontend import NnFrontend

    return NnFrontend()
