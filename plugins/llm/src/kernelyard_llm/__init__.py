"""Language models: `load` one, then `chat`, `generate` or `save` it."""

from __future__ import annotations

from kernelyard_llm.errors import LanguageModelError as LanguageModelError
from kernelyard_llm.errors import ModelFileError as ModelFileError
from kernelyard_llm.errors import TokenizerError as TokenizerError
from kernelyard_llm.load import from_executable as from_executable
from kernelyard_llm.load import load as load
from kernelyard_llm.model import LanguageModel as LanguageModel
from kernelyard_llm.model import Stats as Stats
from kernelyard_llm.sampling import Sampling as Sampling
