"""The hooks that a plugin implements. Each is optional; a plugin's manifest says which it provides.

A hook is called once, when the plugin is first needed, and must be cheap: it makes the object and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from kernelyard.plugins.interfaces.backend import Backend
    from kernelyard.plugins.interfaces.code_generator import CodeGenerator
    from kernelyard.plugins.interfaces.frontend import Frontend

PROJECT = "kernelyard"
API_VERSION = "2.1"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def kernelyard_backend() -> Backend:  # pyright: ignore[reportReturnType]
    """Return the backend that this plugin registers: patterns, checks and a codegen for regions."""


@hookspec
def kernelyard_code_generator() -> CodeGenerator:  # pyright: ignore[reportReturnType]
    """Return the code generator that turns loop-level functions into kernels for a target."""


@hookspec
def kernelyard_frontend() -> Frontend:  # pyright: ignore[reportReturnType]
    """Return the frontend that reads models of one format into an IRModule."""


HOOK_OF_PART = {
    "backend": "kernelyard_backend",
    "code_generator": "kernelyard_code_generator",
    "frontend": "kernelyard_frontend",
}
