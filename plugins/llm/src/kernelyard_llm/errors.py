"""Errors of language models: of their files, tokenizers, settings and engine."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class LanguageModelError(KernelyardError):
    """A language model cannot run a request: unknown architecture, invalid setting, prompt too long."""

    code = "KY750"


class ModelFileError(LanguageModelError):
    """A model file is malformed: a GGUF file, a safetensors file, or `config.json`."""

    code = "KY751"


class TokenizerError(LanguageModelError):
    """A tokenizer or chat template is missing, not supported, or fails."""

    code = "KY752"


class EngineBusyError(LanguageModelError):
    """The queue of requests is full."""

    code = "KY753"


class EngineStoppedError(LanguageModelError):
    """The engine is stopping and accepts no more requests."""

    code = "KY754"
