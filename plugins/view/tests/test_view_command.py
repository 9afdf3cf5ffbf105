"""The command `kernelyard view`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from view_models import network

import kernelyard as ky
from kernelyard.driver.cli import main
from kernelyard_view.view_command import command


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    ky.compile(network(), backends=["dnnl"]).save(tmp_path / "model.kyar")
    return tmp_path / "model.kyar"


def test_an_artifact(artifact: Path) -> None:
    page = artifact.with_name("page.html")
    result = CliRunner().invoke(command, [str(artifact), "-o", str(page), "--calls", "2", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    assert facts["page"] == str(page)
    assert facts["bytes"] == page.stat().st_size
    (build,) = facts["builds"]
    assert build["title"] == "model.kyar"
    assert build["ops"] == 5
    assert build["steps"] >= 1
    assert "/dense.1/Relu" in page.read_text(encoding="utf-8")


def test_an_artifact_with_a_difference(artifact: Path) -> None:
    difference = artifact.with_name("difference.json")
    found = {"relative": 0.25, "kind": "values"}
    layers = [{"number": 0, "label": "node '/dense.1/Relu' (Relu)", "op": "nn.relu", "type": "", "difference": found}]
    difference.write_text(json.dumps({"suspect": "a", "against": "b", "layers": layers}))
    page = artifact.with_name("page.html")
    result = CliRunner().invoke(command, [str(artifact), str(difference), "-o", str(page), "--calls", "0"])
    assert result.exit_code == 0, result.output
    assert '"errors":[null,null,null,0.25,null]' in page.read_text(encoding="utf-8")
    alone = CliRunner().invoke(command, [str(difference), "-o", str(page)])
    assert alone.exit_code == 0, alone.output
    assert '"errors":[0.25]' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"traceEvents": []}', '{"layers": [1], "against": ""}', "7"])
def test_what_is_neither_a_trace_nor_a_difference_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    result = CliRunner().invoke(main, ["view", str(file), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 1, result.output
    assert "KY601" in result.output
    assert not (tmp_path / "page.html").exists()


def test_three_builds_are_too_many(artifact: Path) -> None:
    result = CliRunner().invoke(
        command, [str(artifact)] * 3 + ["--calls", "0", "-o", str(artifact.with_name("p.html"))]
    )
    assert result.exit_code == 2
    assert "3 builds are given" in result.output
