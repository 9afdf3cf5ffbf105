"""Facts that compiled programs depend on beside their models."""

from __future__ import annotations

import json
import os
from pathlib import Path

import kernelyard
import kernelyard_llm
import kernelyard_native_cpu
from kernelyard.runtime.api import compiler_facts, list_source_files


def test_facts_are_data_and_stay():
    assert json.dumps(compiler_facts()) == json.dumps(compiler_facts())


def test_the_core_and_all_plugins_are_sources():
    sources = compiler_facts()["sources"]
    for package in (kernelyard, kernelyard_llm, kernelyard_native_cpu):
        assert list_source_files(str(Path(str(package.__file__)).parent)) in sources


def test_a_change_of_a_source_is_one_of_the_facts(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("a.py", "inner/b.py", "inner/manifest.toml", "inner/notes.txt"):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, ns=(1, 1))
    found = list_source_files(str(tmp_path))
    assert found == [("a.py", 0, 1), ("inner/b.py", 0, 1), ("inner/manifest.toml", 0, 1)]
    os.utime(tmp_path / "inner" / "b.py", ns=(1, 2))
    assert list_source_files(str(tmp_path)) != found


def test_the_environment_is_one_of_the_facts_but_for_where_caches_are(monkeypatch):
    before = compiler_facts()
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "7")
    assert compiler_facts() == before
    monkeypatch.setenv("KERNELYARD_PLUGINS", "llm")
    assert compiler_facts() != before
