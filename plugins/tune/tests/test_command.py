"""`kernelyard tune`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper, save

import kernelyard as ky
from kernelyard.cli.main import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xz"]
    path = tmp_path / "model.onnx"
    save(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], [weights])), path)
    return path


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "64")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_it_saves_the_decision_and_the_artifact(model: Path, tmp_path: Path) -> None:
    placement, artifact = tmp_path / "model.json", tmp_path / "model.kyar"
    options = ("--effort", 0.3, "--threads", 1, "--dim", "n=4", "--placement", placement, "-o", artifact)
    facts = json.loads(run("tune", model, *options, "--json"))
    decision = ky.load(artifact).report.decision
    assert decision is not None
    assert facts["decision"] == decision.to_json()
    assert json.loads(placement.read_text())["placements"] == [decision.to_json()]
    run("compile", model, "--placement", placement, "-o", tmp_path / "again.kyar")
    assert (tmp_path / "again.kyar").read_bytes() == artifact.read_bytes()
    assert json.loads(run("tune", model, *options, "--json")) == facts  # remembered
    assert json.loads(run("cache", "--only", "placements", "--json"))["caches"]["placements"]["entries"] == 1
    assert f"placement: {decision.name}" in run("explain", model, "--placement", placement)


def test_people_see_a_table(model: Path) -> None:
    lines = run("tune", model, "--effort", 0.2).splitlines()
    assert lines[0].startswith("placement: ")
    assert lines[1].split()[0] == "candidate"


def test_an_artifact_is_placed_already(model: Path, tmp_path: Path) -> None:
    artifact, placement = tmp_path / "model.kyar", tmp_path / "p.json"
    run("tune", model, "--effort", 0.2, "-o", artifact, "--placement", placement)
    result = CliRunner().invoke(main, ["explain", str(artifact), "--placement", str(placement)])
    assert result.exit_code == 2
    assert "is compiled already" in result.output
