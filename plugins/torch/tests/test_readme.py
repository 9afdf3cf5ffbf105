"""The plugin's README: its Python runs, and it names what there is."""

from __future__ import annotations

import doctest
import re
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from kernelyard_torch import exported_program
from kernelyard_torch.compile_options import CompileOptions

FOLDER = Path(__file__).parents[1]
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "model.kyar").is_file()


def test_every_file_and_option_is_there() -> None:
    sources = {path.name for path in (FOLDER / "src" / "kernelyard_torch").glob("*.py")} - {"__init__.py", "plugin.py"}
    assert sources <= set(re.findall(r"`([\w.]+\.py)`", TEXT))
    assert {*(each.name for each in fields(CompileOptions)), *exported_program.MUTATIONS, "mutations"} <= set(
        re.findall(r"`\"?(\w+)\"?`", TEXT)
    )


def test_examples_run() -> None:
    found = doctest.testmod(exported_program)
    assert found.attempted
    assert not found.failed
