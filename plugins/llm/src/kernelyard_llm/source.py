"""Sources of language models: what is read of a file or a folder, whatever its format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kernelyard_llm.configuration import CACHE_DTYPES, CacheDtype, ModelConfig
from kernelyard_llm.description import Description
from kernelyard_llm.errors import LanguageModelError

if TYPE_CHECKING:
    from kernelyard_llm.network import Weights

GGUF_SUFFIX = ".gguf"
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"


class Source(NamedTuple):
    """A network to be compiled: its description, and its weights, which are read as they are asked for."""

    description: Description
    weights: Weights

    def with_cache(self, dtype: CacheDtype | None) -> Source:
        """Return the source with a cache of that dtype, None for its own. Raises: LanguageModelError for another."""
        if dtype is None:
            return self
        if dtype not in CACHE_DTYPES:
            raise LanguageModelError("a cache has no such dtype", found=dtype, expected=", ".join(CACHE_DTYPES))
        config = replace(self.description.config, cache_dtype=dtype)
        return self._replace(description=replace(self.description, config=config))


def read_source(path: Path) -> Source:
    """Read a GGUF file, or a folder of HuggingFace's layout.

    Raises: LanguageModelError where there is neither, ModelFileError, TokenizerError.
    """
    if path.is_file() and path.suffix.lower() == GGUF_SUFFIX:
        return _gguf(path)
    if is_folder(path):
        return _folder(path)
    raise LanguageModelError(
        "this is no language model" if path.exists() else "there is no such language model",
        where=str(path),
        expected="a GGUF file, a folder with config.json, or an artifact (.kyar) that was made of one",
    )


def is_folder(path: Path) -> bool:
    """Return True for a folder of HuggingFace's layout."""
    return (path / "config.json").is_file()


def _folder(path: Path) -> Source:
    from kernelyard_llm.folder_texts import folder_template, folder_tokenizer
    from kernelyard_llm.from_huggingface import read_folder

    config, weights = read_folder(path)
    tokenizer = folder_tokenizer(path)
    config = _with_default_cache(config, {each.dtype.name for _, each in weights.read_stored()} <= {"float32"})
    is_tied = OUTPUT not in weights
    read = sum(each.nbytes for name, each in weights.read_stored() if is_tied or name != EMBEDDING)
    chat = folder_template(path)
    description = Description(config, tokenizer.document, tokenizer.begin, tokenizer.ends, chat, read)
    return Source(description, weights)


def _gguf(path: Path) -> Source:
    from kernelyard_llm.from_gguf import GGUFWeights, gguf_config
    from kernelyard_llm.gguf import read_gguf
    from kernelyard_llm.tokenizer import gguf_tokenizer

    file = read_gguf(path)
    config = _with_default_cache(gguf_config(file), {each.type.name for each in file.tensors.values()} <= {"F32"})
    tokenizer = gguf_tokenizer(file.metadata)
    chat = file.metadata.get("tokenizer.chat_template")
    is_tied = OUTPUT not in file.tensors
    read = sum(each.data.nbytes for name, each in file.tensors.items() if is_tied or name != EMBEDDING)
    chat = chat if isinstance(chat, str) else None
    description = Description(config, tokenizer.document, tokenizer.begin, tokenizer.ends, chat, read)
    return Source(description, GGUFWeights(file, config))


def _with_default_cache(config: ModelConfig, are_floats: bool) -> ModelConfig:
    """Return the configuration with the cache that suits the weights: float32 where all of them are, else float16.

    Keys and values are products of the weights. Half the bytes hold them as well as fewer bits hold the weights, and a
    step reads all of them.
    """
    return replace(config, cache_dtype="float32" if are_floats else "float16")
