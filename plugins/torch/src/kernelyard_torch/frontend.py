"""TorchFrontend: what the core asks whether a model is PyTorch's, and to read it (`exported_program.py`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelyard.plugins.api import Frontend, IRModule


class TorchFrontend(Frontend):
    """Reads programs of `torch.export`, as objects and as `.pt2` files, and `torch.nn.Module`s.

    Weights are views of the program's tensors: nothing is copied.

    Options:
        example_inputs: what a module is exported for: a tensor, a tuple of them, or a mapping by the names of its
            arguments.
        dynamic_shapes: which of their sizes stay open, as `torch.export.export` takes it.
        mutations: what becomes of buffers and inputs that the program writes to. "refuse" (default): an error that
            names them. "outputs": their new values are outputs after the program's own, named "new_" and what they
            are of, and such buffers are inputs after the program's own.
    """

    name = "torch"

    def accepts(self, model: object) -> bool:
        """Return True for paths that end in `.pt2`, programs and modules; imports nothing."""
        if isinstance(model, (str, os.PathLike)):
            return Path(os.fsdecode(model)).suffix.lower() == ".pt2"
        nn, export = sys.modules.get("torch.nn"), sys.modules.get("torch.export")  # imported by whoever holds one
        is_program = export is not None and isinstance(model, export.ExportedProgram)
        return is_program or (nn is not None and isinstance(model, nn.Module))

    def import_model(self, model: object, options: Mapping[str, Any]) -> IRModule:
        """Read a program into a module with the function "main", and private ones for branches and loops.

        Raises: UnsupportedOperatorError (lists every unsupported node), ModelFormatError, FrontendError for options
          that make no sense.
        """
        from kernelyard_torch.exported_program import import_program
        from kernelyard_torch.model_sources import export_program

        return import_program(export_program(model, options), options)
