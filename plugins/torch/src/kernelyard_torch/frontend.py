"""TorchFrontend: what the core asks whether a model is a program made by torch.export, and to read it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kernelyard.plugins.api import Frontend, IRModule


class TorchFrontend(Frontend):
    """Reads what `torch.export.export` returns. Weights are views of the program's tensors: nothing is copied.

    Options:
        mutations: what becomes of buffers and inputs that the program writes to. "refuse" (default): an error that
            names them. "outputs": their new values are outputs after the program's own, named "new_" and what they
            are of, and such buffers are inputs after the program's own.
    """

    name = "torch"

    def accepts(self, model: object) -> bool:
        """Return True for `torch.export.ExportedProgram`; imports nothing."""
        torch = sys.modules.get("torch.export")  # whoever holds a program has imported it
        return torch is not None and isinstance(model, torch.ExportedProgram)

    def import_model(self, model: object, options: Mapping[str, Any]) -> IRModule:
        """Read a program into a module with the function "main", and private ones for branches and loops.

        Raises: UnsupportedOperatorError (lists every unsupported node), ModelFormatError, FrontendError for options
          that make no sense.
        """
        from kernelyard_torch.exported_program import import_program

        return import_program(model, options)  # pyright: ignore[reportArgumentType]
