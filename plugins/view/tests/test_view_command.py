"""The commands `kernelyard view` and `kernelyard trace`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from view_models import network

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard.runtime.profiling.profiler import profile
from kernelyard_view.live_table import live_table
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
    assert "difference.json: against b" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"traceEvents": []}', '{"layers": [1], "against": ""}', "7"])
def test_what_is_neither_a_trace_nor_a_difference_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    result = CliRunner().invoke(main, ["view", str(file), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 1, result.output
    assert "KY601" in result.output
    assert not (tmp_path / "page.html").exists()


def test_a_trace_has_calls_steps_and_parts_and_can_be_viewed(artifact: Path) -> None:
    trace, page = artifact.with_name("trace.json"), artifact.with_name("page.html")
    arguments = ["trace", str(artifact), "-o", str(trace), "--calls", "2", "--callers", "2", "--threads", "1", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    assert facts["roof"]["gflops"] > 0
    assert facts["roof"]["gbytes"] > 0
    events = json.loads(trace.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in slices} == {1, 2}
    calls = [event for event in slices if event["cat"] == "call"]
    assert len(calls) == 4
    steps = [event for event in slices if event["cat"] == "dnnl"]
    assert steps
    assert all(event["args"]["of_roof"] > 0 for event in steps)
    parts = {event["name"] for event in slices if event["cat"] == "dnnl part"}
    assert {"node '/dense.0/Relu' (Relu)", "node '/dense.1/Relu' (Relu)"} <= parts
    assert {"GFLOP/s", "GB/s", "live bytes"} == {event["name"] for event in events if event["ph"] == "C"}
    viewed = CliRunner().invoke(main, ["view", str(trace), "-o", str(page), "--json"])
    assert viewed.exit_code == 0, viewed.output
    assert json.loads(viewed.output)["builds"][0]["steps"] == len(facts["profile"]["steps"])


def test_a_table_has_a_row_for_each_layer(artifact: Path) -> None:
    result = CliRunner().invoke(main, ["trace", str(artifact), "--calls", "1", "--threads", "1"])
    assert result.exit_code == 0, result.output
    head, *rows = result.output.splitlines()
    assert head.split()[-1] == "node"
    assert any(row.endswith("/dense.0/Relu") for row in rows)
    assert "roof" in rows[-1]


def test_a_live_table_is_drawn_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    exe = ky.compile(network(), backends=[])
    feeds = {"x": np.ones((4, 64), np.float32)}
    with live_table(2, {}) as watch:
        assert watch is None
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("kernelyard_view.live_table.LEAST_SECONDS", 0)
    with live_table(2, {"gflops": 1e3, "gbytes": 1e2}) as watch:
        assert watch is not None
        profile(exe, feeds, 2, watch=watch)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "call 2 of 2" in shown.err


def test_three_builds_are_too_many(artifact: Path) -> None:
    result = CliRunner().invoke(
        command, [str(artifact)] * 3 + ["--calls", "0", "-o", str(artifact.with_name("p.html"))]
    )
    assert result.exit_code == 2
    assert "3 builds are given" in result.output
