"""Language models: `load` one, then `chat`, `generate` or `save` it. Names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelyard_llm.errors import LanguageModelError as LanguageModelError
    from kernelyard_llm.errors import ModelFileError as ModelFileError
    from kernelyard_llm.errors import TokenizerError as TokenizerError
    from kernelyard_llm.loading import from_executable as from_executable
    from kernelyard_llm.loading import load as load
    from kernelyard_llm.model import LanguageModel as LanguageModel
    from kernelyard_llm.model import Stats as Stats
    from kernelyard_llm.sampling import Sampling as Sampling
    from kernelyard_llm.sampling import Scored as Scored

_HOME = {
    "LanguageModelError": "errors",
    "ModelFileError": "errors",
    "TokenizerError": "errors",
    "from_executable": "loading",
    "load": "loading",
    "LanguageModel": "model",
    "Stats": "model",
    "Sampling": "sampling",
    "Scored": "sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
