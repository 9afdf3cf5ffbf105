"""Load language models: `kernelyard_llm.load`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kernelyard
from kernelyard import Executable
from kernelyard_llm.configuration import CacheDtype
from kernelyard_llm.description import KEY, Description
from kernelyard_llm.errors import LanguageModelError
from kernelyard_llm.model import LanguageModel

if TYPE_CHECKING:
    from kernelyard_llm.stored_weights import Products

ARTIFACT_SUFFIX = ".kyar"


def load(
    path: str | Path,
    threads: int | None = None,
    context: int | None = None,
    cache_dtype: CacheDtype | None = None,
    products: Products | None = None,
    **options: Any,
) -> LanguageModel:
    """Load a language model: a GGUF file, a folder of HuggingFace's layout, or an artifact that was saved.

    threads: of the processors, None for all. context: the tokens that there is room for; None for what the model was
    trained for, 8192 at most. cache_dtype: of cached keys and values (default: float16, or float32 where all weights
    are float32); an artifact has that with which it was saved. products: of quantized weights: "int16", the default,
    and "int8" round what they are multiplied by to so many bits, by their blocks, and multiply integers; "float" does
    not, and is slower. options: those of `kernelyard.compile`; an artifact takes neither.

    The compiled program is kept in the cache of this machine (`kernelyard cache`), for the next load of the same file.

    Raises: LanguageModelError, ModelFileError, TokenizerError, and what loading or compiling raises.

    Example:
        model = kernelyard_llm.load("model.gguf")
        print(model.chat([{"role": "user", "content": "Who are you?"}]))
    """
    path = Path(path)
    if path.suffix == ARTIFACT_SUFFIX:
        given = [*options, *(["products"] if products is not None else [])]
        if given:
            raise LanguageModelError("an artifact is compiled already", found=", ".join(given))
        return _with_cache(from_executable(kernelyard.load(path, threads), context, str(path)), cache_dtype)
    from kernelyard_llm.program_cache import program_key, recall_program, remember_program

    key = program_key(path, products, cache_dtype, options)
    executable = recall_program(key, threads)
    if executable is None:
        executable = _compile(path, cache_dtype, products, options)
        remember_program(key, executable)
        if threads is not None:
            executable.threads = threads
    return from_executable(executable, context, str(path))


def _compile(
    path: Path, cache_dtype: CacheDtype | None, products: Products | None, options: Mapping[str, Any]
) -> Executable:
    from kernelyard_llm.program import to_ir
    from kernelyard_llm.source import read_source
    from kernelyard_llm.stored_weights import DEFAULT_PRODUCTS, check_products

    source = read_source(path).with_cache(cache_dtype)
    return kernelyard.compile(to_ir(source, check_products(products or DEFAULT_PRODUCTS)), **options)


def from_executable(executable: Executable, context: int | None = None, where: str | None = None) -> LanguageModel:
    """Return the language model of a program that was compiled of one. Raises: LanguageModelError for another."""
    text = executable.metadata.get(KEY)
    if text is None:
        raise LanguageModelError(
            "this program is no language model", where=where, hint="compile a .gguf file, or a folder of a model"
        )
    return LanguageModel(executable, Description.from_json(text), context)


def _with_cache(model: LanguageModel, wanted: CacheDtype | None) -> LanguageModel:
    """Return the model. Raises: LanguageModelError where its cache has another dtype than is wanted."""
    if wanted not in (None, model.config.cache_dtype):
        raise LanguageModelError(
            "an artifact has the cache that it was compiled for",
            found=f"cache_dtype {wanted}",
            expected=model.config.cache_dtype,
            hint=f"load the model's file with cache_dtype={wanted!r}, and save it",
        )
    return model
