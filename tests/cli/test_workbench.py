"""The commands that look at the machine: `cache`, `doctor --report`, and `-v`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import onnx.parser
import pytest
from click.testing import CliRunner
from distributions import distributions, plugins

from kernelyard.cli.bug_report import redact
from kernelyard.cli.main import main
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.installed.distributions import RELEASED

MODEL = """<ir_version: 8, opset_import: ["": 17]> net (float[2] x) => (float[2] y) { y = Exp(x) }"""


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "64")
    return tmp_path / "caches"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


# --- cache ------------------------------------------------------------------------------------------------------------
def test_caches_are_listed_and_cleared(caches: Path) -> None:
    one, two = DiskCache("one"), DiskCache("two")
    one.put("a", b"x" * 100)
    two.put("b", b"y")
    two.put("c", b"z")
    (caches / "two" / "mine.txt").write_text("kept")
    listed = json.loads(run("cache", "--json"))["caches"]
    assert {name: use["entries"] for name, use in listed.items()} == {"one": 1, "two": 2}
    assert listed["one"]["bytes"] > 100
    assert "two" in run("cache")
    cleared = json.loads(run("cache", "--clear", "--only", "two", "--json"))
    assert cleared["cleared"] is True
    assert cleared["caches"]["two"]["entries"] == 2
    assert two.get("b") is None
    assert one.get("a") == b"x" * 100
    assert (caches / "two" / "mine.txt").read_text() == "kept"  # not an entry
    run("cache", "--clear")
    assert one.get("a") is None


def test_no_cache_and_a_wrong_name(caches: Path) -> None:
    assert "nothing is cached" in run("cache")
    assert "nothing is cached" in run("cache", "--only", "placements")
    result = CliRunner().invoke(main, ["cache", "--clear", "--only", "three"])
    assert result.exit_code == 2
    assert "three" in result.output


# --- doctor --report --------------------------------------------------------------------------------------------------
def test_a_report_has_no_paths_and_no_secrets(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_DNNL_LIBRARY", os.environ.get("KERNELYARD_DNNL_LIBRARY", "/home/ann/libdnnl.so.3"))
    monkeypatch.setenv("KERNELYARD_ACCESS_TOKEN", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for arguments in (["doctor", "--report"], ["doctor", "--report", "--json"]):
        text = CliRunner().invoke(main, arguments).output
        assert "hunter2" not in text
        assert "OMP_NUM_THREADS" in text
        assert re.findall(r"(?<![\w<])/(?:home|tmp|root|usr|opt|work)\b\S*", text) == []
        assert str(caches) not in text
        assert "kernelyard" in text
    facts = json.loads(text)
    assert facts["variables"]["OMP_NUM_THREADS"] == "2"
    assert facts["variables"]["KERNELYARD_DNNL_LIBRARY"] == "set"
    assert facts["processors"] >= 1
    assert {info["name"] for info in facts["plugins"]} >= {"dnnl", "onnx"}


@pytest.mark.parametrize(("text", "expected"), [
    ("/usr/lib/libdnnl.so.3 3.2", "<path> 3.2"),
    ("file:///home/ann/x and ~/y", "<path> and <path>"),
    ("https://token@example.org/simple", "<path>"),
    ("12 GB/s and/or 3/4", "12 GB/s and/or 3/4"),
    ("C:\\Users\\ann\\x.dll is missing", "<path> is missing"),
])  # fmt: skip
def test_places_are_taken_out_of_texts(text: str, expected: str) -> None:
    assert redact([{"reason": text}]) == [{"reason": expected}]


# --- -v ---------------------------------------------------------------------------------------------------------------
def test_verbose_says_passes_and_caches(caches: Path, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    arguments = ["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.kyar")]
    first, again = (CliRunner().invoke(main, ["-v", *arguments]) for _ in range(2))
    assert first.exit_code == again.exit_code == 0, first.output
    assert "in passes" in first.stderr
    assert re.search(r"cache native-cpu: 0 hits, [1-9]", first.stderr)
    assert re.search(r"cache native-cpu: [1-9]\d* hits, 0 misses", again.stderr)
    quiet = CliRunner().invoke(main, arguments)
    assert quiet.stderr == ""


# --- what is released -------------------------------------------------------------------------------------------------
def test_pip_lines_name_our_packages_alone() -> None:
    assert {each.folder.name for each in plugins()} == RELEASED
    assert all(each.name == f"kernelyard-{each.folder.name}" for each in plugins())


def test_every_distribution_has_types() -> None:
    for each in distributions():
        own = [package for package in each.packages if package.name != "kernelyard" or each.name == "kernelyard"]
        assert all((package / "py.typed").is_file() for package in own), each.name
