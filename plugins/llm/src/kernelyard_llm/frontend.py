"""LanguageModelFrontend: read GGUF files, as `kernelyard compile model.gguf` does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelyard.plugins.api import Frontend, IRModule


class LanguageModelFrontend(Frontend):
    """Trace the network of a file: one function for tokens, one for logits; the artifact keeps the tokenizer."""

    name = "llm"

    def accepts(self, model: object) -> bool:
        """Return True for paths that end in `.gguf`."""
        return isinstance(model, (str, os.PathLike)) and Path(os.fsdecode(model)).suffix.lower() == ".gguf"

    def import_model(self, model: object, options: Mapping[str, Any]) -> IRModule:
        """Read a file. Raises: LanguageModelError, ModelFileError, TokenizerError."""
        from kernelyard_llm.program import to_ir
        from kernelyard_llm.source import read_source

        assert isinstance(model, (str, os.PathLike))
        return to_ir(read_source(Path(os.fsdecode(model))))
