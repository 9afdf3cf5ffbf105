"""LanguageModelFrontend: read GGUF files and folders, as `kernelyard compile model.gguf` does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelyard.plugins.api import Frontend, IRModule
from kernelyard_llm.source import GGUF_SUFFIX, is_folder


class LanguageModelFrontend(Frontend):
    """Trace the network of a file: one function for tokens, one for logits; the artifact keeps the tokenizer."""

    name = "llm"

    def accepts(self, model: object) -> bool:
        """Return True for paths that end in `.gguf`, and for folders of HuggingFace's layout."""
        if not isinstance(model, (str, os.PathLike)):
            return False
        path = Path(os.fsdecode(model))
        return path.suffix.lower() == GGUF_SUFFIX or is_folder(path)

    def import_model(self, model: object, options: Mapping[str, Any]) -> IRModule:
        """Read a file or a folder. options: `products`, see `kernelyard_llm.load`.

        Raises: LanguageModelError, ModelFileError, TokenizerError.
        """
        from kernelyard_llm.program import to_ir
        from kernelyard_llm.source import read_source
        from kernelyard_llm.stored_weights import DEFAULT_PRODUCTS, check_products

        assert isinstance(model, (str, os.PathLike))
        return to_ir(read_source(Path(os.fsdecode(model))), check_products(options.get("products", DEFAULT_PRODUCTS)))
