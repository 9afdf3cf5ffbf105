"""Errors of language models: their files, their tokenizers and what they are asked."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class LanguageModelError(KernelyardError):
    """A language model cannot be used as asked: an unknown architecture, a wrong setting, too long a text."""

    code = "KY750"


class ModelFileError(LanguageModelError):
    """The file of a language model is malformed: a GGUF file, a safetensors file, or a configuration."""

    code = "KY751"


class TokenizerError(LanguageModelError):
    """A tokenizer or a chat template is missing, unknown, or cannot be applied."""

    code = "KY752"


class EngineBusyError(LanguageModelError):
    """As many texts wait for their turn as may wait."""

    code = "KY753"


class EngineStoppedError(LanguageModelError):
    """The engine is stopping, and takes no more texts."""

    code = "KY754"
