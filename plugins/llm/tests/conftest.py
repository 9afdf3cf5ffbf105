"""A small Llama as a file, and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_writer import write_gguf
from small_llama import llama_metadata, llama_tensors

import kernelyard_llm


@pytest.fixture(scope="session")
def llama_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder, made = tmp_path_factory.mktemp("llama"), {}

    def file(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_gguf(folder / f"{kind}.gguf", llama_metadata(), llama_tensors(kind))
        return made[kind]

    return file


@pytest.fixture(scope="session")
def llama(llama_file: Callable[[str], Path]) -> kernelyard_llm.LanguageModel:
    return kernelyard_llm.load(llama_file("Q4_1"), threads=1)
