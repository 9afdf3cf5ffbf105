"""The report: numbers, text, and JSON that is read back with care."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kernelyard.errors import ArtifactCorruptedError
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import DeclinedMatch, Kernel, Placed, PlacedRegion, Violation


@pytest.fixture
def report() -> Report:
    def declined(node: str, code: str, taken_by: str = "", pattern: str = "dnnl.matmul") -> DeclinedMatch:
        return DeclinedMatch("dnnl", pattern, node, "matmul", code, f"because of {code}", taken_by)

    return Report(
        "cpu",
        placed=(
            Placed("dnnl", "nn.conv2d", 50, 9600, 400),
            Placed("dnnl", "add", 33, 0, 400),
            Placed("native-cpu", "erf", 29, 400, 200),
        ),
        regions=(PlacedRegion("dnnl", "dnnl.conv2d", ("nn.conv2d", "add"), "dnnl_0", "node 'Conv_0' (Conv)"),),
        declined=(
            *(declined(f"node 'M_{i}' (MatMul)", "dtype") for i in range(4)),
            declined("node 'N_0' (MatMul)", "leaking-intermediate", pattern="dnnl.matmul_relu"),
            declined("node 'N_0' (MatMul)", "dynamic-shape"),
            declined("node 'N_1' (MatMul)", "dynamic-shape"),
            declined("node 'K' (MatMul)", "rank", taken_by="dnnl"),
        ),
        kernels=(Kernel("native-cpu", "fused_erf", ("erf",)),),
        violations=(Violation("other", ("other_0",), "it lied"),),
    )


def test_summary_line(report: Report) -> None:
    line = "dnnl 83/112 ops (96 % of FLOPs) · native-cpu 29 · declined 6: dtype×4 dynamic-shape×2"
    assert report.summary == line + " · contract violations 1"
    assert str(report).splitlines()[0] == report.summary


def test_coverage_has_fractions(report: Report) -> None:
    assert report.coverage["dnnl"] == {
        "ops": 83,
        "flops": 9600,
        "bytes": 800,
        "ops_fraction": 83 / 112,
        "flops_fraction": 0.96,
        "bytes_fraction": 0.8,
    }
    assert sum(work["ops_fraction"] for work in report.coverage.values()) == pytest.approx(1)


def test_text_says_who_why_and_where(report: Report) -> None:
    text = str(report)
    for piece in ("dnnl.conv2d", "dynamic-shape", "node 'N_1' (MatMul)", "because of dtype", "it lied", "erf×29"):
        assert piece in text
    assert "rank" not in text  # declined by one pattern, taken by another: no loss, so not in the table


def test_many_declines_are_counted_not_listed() -> None:
    declined = [DeclinedMatch("a", "a.p", f"node {i}", "add", "dtype", f"no {i}") for i in range(60)]
    report = Report("cpu", declined=tuple(declined))
    assert "declined 60: dtype×60" in report.summary
    assert "... and 20 more" in str(report)


def test_declines_for_one_reason_are_a_row() -> None:
    declined = [DeclinedMatch("a", "a.p", f"node {i}", "add", "dtype", "no") for i in range(60)]
    (row,) = (line for line in str(Report("cpu", declined=tuple(declined))).splitlines() if "node 0" in line)
    assert row.split() == ["a", "dtype", "add", "60", *["node", "0,", "node", "1,", "node", "2,", "..."], "a.p", "no"]


def test_without_a_library_the_code_generator_has_all() -> None:
    assert Report("cpu", placed=(Placed("native-cpu", "exp", 3, 30, 10),)).summary == (
        "native-cpu 3/3 ops (100 % of FLOPs)"
    )
    assert str(Report("cpu")) == "nothing to run"


@pytest.mark.parametrize(
    ("rest", "shown"), [(0, "100 %"), (1, "99.9 %"), (3000, "99.7 %"), (40000, "96 %"), (10**6, "50 %")]
)
def test_what_is_not_everything_is_not_shown_as_100(rest: int, shown: str) -> None:
    placed = (Placed("dnnl", "matmul", 1, 10**6, 8), Placed("native-cpu", "exp", 1, rest, 8))
    assert f"({shown} of FLOPs)" in Report("cpu", placed=placed).summary


def test_round_trip_through_json(report: Report) -> None:
    data = json.loads(json.dumps(report.to_json()))
    again = Report.from_json(data)
    assert again == report
    assert again.to_json() == report.to_json()
    assert data["coverage"]["dnnl"]["flops_fraction"] == 0.96


def _set(data: Any, path: list[Any], value: Any) -> Any:
    changed = copy.deepcopy(data)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["target"], 3),
        (["precision"], 3),
        (["placed"], {}),
        (["placed", 0], []),
        (["placed", 0, "count"], -1),
        (["placed", 0, "flops"], "many"),
        (["regions", 0, "ops"], "add"),
        (["regions", 0, "ops", 0], 1),
        (["declined", 0, "code"], None),
        (["kernels", 0, "name"], 1.5),
        (["violations", 0, "functions"], None),
    ],
)
def test_malformed_json_is_refused_with_its_place(report: Report, path: list[Any], value: Any) -> None:
    data = _set(json.loads(json.dumps(report.to_json())), path, value)
    with pytest.raises(ArtifactCorruptedError, match="malformed") as error:
        Report.from_json(data)
    assert str(path[0]) in str(error.value)


@pytest.mark.parametrize("data", [None, [], {}, {"target": "cpu"}, "report"])
def test_something_else_is_refused(data: Any) -> None:
    with pytest.raises(ArtifactCorruptedError):
        Report.from_json(data)
