"""`kernelyard new-backend`: unusable names are refused, nothing is overwritten; tests/docs runs what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelyard.cli.commands.new_backend import new_backend, template
from kernelyard.errors import PluginError


@pytest.mark.parametrize(
    "name", ["", "Acme", "9lives", "my_lib", "my--lib", "-x", "x-", "../x", "a b", "löwe", "x" * 61]
)
def test_names_that_are_no_words_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="is not a valid backend name"):
        new_backend(name, tmp_path / "new")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["acme", "auto", "none", "core", "dnnl"])
def test_names_with_another_meaning_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"is reserved|is taken by an installed plugin"):
        new_backend(name, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for there in (tmp_path, tmp_path / "file"):
        with pytest.raises(PluginError, match="nothing is overwritten"):
            new_backend("mine", there)
    assert (tmp_path / "file").read_text() == "mine"


def test_no_word_of_the_template_is_left(tmp_path: Path) -> None:
    new_backend("my-lib", tmp_path / "new")
    written = [path for path in (tmp_path / "new").rglob("*") if path.is_file()]
    there = [path for path in template().rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(written) == len([path for path in there if not path.name.startswith(".")])
    for path in written:
        assert "acme" not in str(path.relative_to(tmp_path)).lower()
        assert "acme" not in path.read_text(encoding="utf-8").lower()


def test_prose_has_the_name_as_it_was_given(tmp_path: Path) -> None:
    new_backend("my-lib", tmp_path / "new")
    assert 'summary = "my-lib: linear layers' in (tmp_path / "new/src/kernelyard_my_lib/manifest.toml").read_text()
