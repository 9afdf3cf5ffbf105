"""The hooks of the plugin for language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelyard.plugins.api import hookimpl

if TYPE_CHECKING:
    from kernelyard_llm.frontend import LanguageModelFrontend


@hookimpl
def kernelyard_frontend() -> LanguageModelFrontend:
    """Return the frontend that reads language models."""
    from kernelyard_llm.frontend import LanguageModelFrontend

    return LanguageModelFrontend()
