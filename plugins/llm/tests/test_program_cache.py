"""Compiled models that are kept on disk: what is loaded again is not compiled again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from gguf_writer import write_gguf
from small_llama import llama_metadata, llama_tensors

import kernelyard
import kernelyard_llm
from kernelyard.cli.main import main
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard_llm import LanguageModelError
from kernelyard_llm.description import KEY
from kernelyard_llm.program_cache import program_key, recall_program, remember_program

IDS = [5, 77, 130, 9]


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "64")
    return tmp_path / "caches"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", llama_metadata(layers=1), llama_tensors("Q4_1"))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the models that are compiled from now on."""
    seen: list[object] = []
    compile_model = kernelyard.compile

    def watched(model: object, **options: Any) -> kernelyard.Executable:
        seen.append(model)
        return compile_model(model, **options)

    monkeypatch.setattr(kernelyard, "compile", watched)
    return seen


@pytest.fixture
def relu() -> kernelyard.Executable:
    b = FunctionBuilder()
    return kernelyard.compile(IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2,))))}), backends=[])


def entries(caches: Path) -> list[Path]:
    return list(caches.glob("kernelyard-llm-*/*.kyar"))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_same_file_is_compiled_once_unless_its_program_is_damaged(file, caches, compiled, tmp_path):
    first, second = (kernelyard_llm.load(file, threads=1) for _ in range(2))
    (entry,) = entries(caches)
    assert len(compiled) == 1
    np.testing.assert_array_equal(second.logits(IDS), first.logits(IDS))
    assert (second.executable.threads, second.encode("the")) == (1, first.encode("the"))
    for name, model in (("first", first), ("second", second)):
        model.save(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes() == entry.read_bytes()
    damage(entry)
    np.testing.assert_array_equal(kernelyard_llm.load(file, threads=1).logits(IDS), first.logits(IDS))
    assert (len(compiled), entry.read_bytes()) == (2, (tmp_path / "first").read_bytes())


def test_the_command_lists_and_clears_programs(file, caches, compiled):
    kernelyard_llm.load(file, threads=1)
    (entry,) = entries(caches)
    assert f"{entry.parent.name}  1 entries" in CliRunner().invoke(main, ["cache"]).output
    CliRunner().invoke(main, ["cache", "--clear", "--only", entry.parent.name])
    assert entries(caches) == []


def test_a_key_tells_ways_of_compiling_and_what_compiles(file, caches, monkeypatch):
    ways = [("float", None, {}), (None, "float32", {}), (None, None, {"backends": []}), (None, None, {})]
    keys = [program_key(file, *way) for way in ways]
    assert len(set(keys)) == len(keys)
    assert keys[-1] == program_key(file, None, None, {})
    monkeypatch.setenv("KERNELYARD_PLUGINS", "native-cpu,llm")
    assert program_key(file, None, None, {}) not in [None, *keys]


def test_a_key_tells_files_apart_that_are_of_equal_size_and_time(file, caches):
    before, key = file.stat(), program_key(file, None, None, {})
    write_gguf(file, llama_metadata(layers=1), llama_tensors("Q4_1", seed=1))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert program_key(file, None, None, {}) not in (None, key)


def test_a_key_tells_each_file_of_a_folder(tmp_path, caches):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(name)
    keys = [program_key(folder, None, None, {})]
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("other")
        keys.append(program_key(folder, None, None, {}))
    assert None not in keys
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("options", [{"target": kernelyard.Target("cpu")}, {"tune": "quick"}, {"backends": [object()]}])
def test_there_is_no_key_for_options_that_are_more_than_data(file, caches, options):
    assert program_key(file, None, None, options) is None


def test_there_is_no_key_where_there_is_no_file_or_no_cache(file, caches, monkeypatch):
    assert program_key(file.with_name("missing.gguf"), None, None, {}) is None
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "0")
    assert program_key(file, None, None, {}) is None


def test_what_is_no_program_of_a_model_is_dropped(caches, relu):
    remember_program("key", relu)
    assert len(entries(caches)) == 1
    assert recall_program("key", None) is None
    assert entries(caches) == []


def test_what_others_could_have_written_is_not_loaded(caches, relu, tmp_path):
    relu.metadata[KEY] = ""
    remember_program("key", relu)
    (entry,) = entries(caches)
    assert recall_program("key", None) is not None
    entry.chmod(0o666)
    assert recall_program("key", None) is None
    entry.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o600)
    entry.symlink_to(tmp_path / "elsewhere")
    assert recall_program("key", None) is None


def test_nothing_is_kept_beyond_the_limit_nor_without_a_key(caches, relu, monkeypatch):
    remember_program(None, relu)
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "1")
    remember_program("key", relu)
    assert entries(caches) == []


def test_errors_are_those_of_the_file(tmp_path, caches):
    with pytest.raises(LanguageModelError, match="there is no such language model"):
        kernelyard_llm.load(tmp_path / "missing.gguf")
