"""The folders that plugins may keep files in."""

from __future__ import annotations

import json
import os
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from kernelyard.cli.main import main
from kernelyard.runtime.api import plugin_cache


@pytest.fixture
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "1")
    return tmp_path / "caches"


def listed(*options):
    done = CliRunner().invoke(main, ["cache", "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["caches"]


def test_a_plugin_has_a_folder_for_each_version(caches):
    folder = plugin_cache("kernelyard-onnx")
    assert folder == caches / f"kernelyard-onnx-{version('kernelyard-onnx')}"
    (folder / "engines").mkdir()
    (folder / "engines" / "a.blob").write_bytes(bytes(1000))
    assert plugin_cache("kernelyard-onnx") == folder
    assert listed()[folder.name] == {"entries": 1, "bytes": 1000}
    assert "files of that plugin" in CliRunner().invoke(main, ["cache"]).output
    listed("--clear", "--only", folder.name)
    assert not (folder / "engines" / "a.blob").exists()
    assert listed()[folder.name] == {"entries": 0, "bytes": 0}


def test_the_oldest_files_go_where_the_bound_is_passed(caches):
    folder = plugin_cache("kernelyard-onnx")
    for number in range(3):
        (folder / str(number)).write_bytes(bytes(400_000))
        os.utime(folder / str(number), (number, number))
    assert sorted(path.name for path in plugin_cache("kernelyard-onnx").glob("[0-9]")) == ["1", "2"]


def test_room_is_made_for_what_is_to_come_but_none_for_more_than_the_bound(caches):
    folder = plugin_cache("kernelyard-onnx")
    for number in range(2):
        (folder / str(number)).write_bytes(bytes(400_000))
        os.utime(folder / str(number), (number, number))
    assert plugin_cache("kernelyard-onnx", 1_000_001) is None
    assert len(list(folder.glob("[0-9]"))) == 2
    assert [path.name for path in plugin_cache("kernelyard-onnx", 600_000).glob("[0-9]")] == ["1"]


def test_nothing_is_kept_where_caches_are_off_or_nobody_is_installed(caches, monkeypatch):
    assert plugin_cache("kernelyard-of-nobody") is None
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "0")
    assert plugin_cache("kernelyard-onnx") is None


def test_files_of_others_are_left_alone(caches):
    (caches / "mine").mkdir(parents=True)
    (caches / "mine" / "letter.txt").write_text("dear")
    listed("--clear")
    assert (caches / "mine" / "letter.txt").read_text() == "dear"
