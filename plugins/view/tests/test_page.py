"""The page of `kernelyard view`: what is in it, for any report, however large and whatever its texts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from view_models import network, report_of

import kernelyard as ky
from kernelyard.runtime.report import Report
from kernelyard_view.build import Build
from kernelyard_view.build_json import build_from_json, build_to_json
from kernelyard_view.graph import graph_data
from kernelyard_view.measure import build_of
from kernelyard_view.page import view_page
from kernelyard_view.watch_passes import WatchPasses, diff_lines


def data_of(page: str) -> list[dict]:
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def measured(title: str = "model", backends: list[str] | None = None) -> Build:
    watch = WatchPasses()
    exe = ky.compile(network(), backends=[] if backends is None else backends, instruments=[watch])
    return build_of(
        exe, title, {"x": np.ones((4, 64), np.float32)}, 2, watch.changes, {"gflops": 100.0, "gbytes": 10.0}
    )


def test_every_op_is_a_box_and_every_read_a_line() -> None:
    nodes = report_of(30).nodes
    graph = graph_data(nodes)
    first = graph["first"]
    assert (first, graph["count"], len(graph["x"])) == (1, 30, 32)
    lines = {(source, target) for source, target, *_ in graph["edges"]}
    assert {(first + i, first + n) for n, node in enumerate(nodes) for i in node.inputs} <= lines
    assert {(0, 1), (30, 31)} <= lines
    assert graph["labels"][1] == "/layers.0/matmul"


def test_boxes_do_not_overlap_and_lines_go_down() -> None:
    graph = graph_data(report_of(200).nodes)
    rows: dict[int, list[int]] = {}
    for box, y in enumerate(graph["y"]):
        rows.setdefault(y, []).append(box)
    for row in rows.values():
        for left, right in pairwise(sorted(row, key=graph["x"].__getitem__)):
            gap = graph["x"][right] - graph["x"][left]
            assert gap >= (graph["w"][left] + graph["w"][right]) / 2
    assert all(edge[3::2] == sorted(edge[3::2]) for edge in graph["edges"])


def test_the_page_needs_nothing_else_and_texts_are_data() -> None:
    page = view_page([Build("a <model> & $more", report_of(9))])
    assert "https://" not in page
    assert "http://" not in page
    assert "default-src 'none'" in page
    assert "<title>a &lt;model&gt; &amp; $more</title>" in page
    assert page.count("</script>") == 2  # texts of reasons cannot end the element
    (build,) = data_of(page)
    assert any("</script>" in text for text in build["texts"])


def test_a_report_of_nothing_has_a_page() -> None:
    assert data_of(view_page([Build("empty", Report("cpu"))]))[0]["nodes"] == []


def test_ten_thousand_ops_are_a_small_page() -> None:
    page = view_page([Build("large", report_of(10_000))])
    assert len(data_of(page)[0]["nodes"]) == 10_000
    assert len(page) < 4_000_000


@pytest.mark.parametrize("backends", [[], ["dnnl"]], ids=str)
def test_a_measured_build_has_times_memory_and_passes(backends: list[str]) -> None:
    build = measured(backends=backends)
    (data,) = data_of(view_page([build]))
    assert set(data["step_of"]) == set(range(len(build.steps)))  # every op belongs to a step, and every step has ops
    assert {step["label"] for step in data["steps"]} <= {"/dense.0/Relu", "/dense.1/Relu", "/Softmax"}
    assert [part.label for step in build.steps for part in step.inside if "/dense.0" in part.label] == (
        ["/dense.0/Relu"] if backends else []
    )
    assert all(seconds > 0 for seconds, _ in data["shares"])
    counts = [count for _, count in data["shares"]]
    assert counts == ([2, 2, 2, 2, 1] if backends else counts)
    memory = build.memory
    assert memory is not None
    assert memory.weights > 0
    for buffer in memory.buffers:
        assert buffer.offset + buffer.nbytes <= memory.nbytes
        others = [b for b in memory.buffers if b is not buffer and b.first <= buffer.last and buffer.first <= b.last]
        assert all(b.offset >= buffer.offset + buffer.nbytes or buffer.offset >= b.offset + b.nbytes for b in others)
    assert "legalize_ops" in {change.name for change in build.passes} or backends
    for change in build.passes:
        signs = [line[0] for line in change.lines]
        assert (signs.count("+"), signs.count("-")) == (change.added, change.removed)


def test_errors_belong_to_the_last_op_of_a_layer() -> None:
    report = report_of(3)
    nodes = tuple(replace(node, name="layer") for node in report.nodes)
    build = Build("m", replace(report, nodes=nodes), errors={"layer": float("inf")})
    assert data_of(view_page([build]))[0]["errors"] == [None, None, 1e308]


def test_two_builds_are_on_one_page() -> None:
    page = view_page([measured("with", ["dnnl"]), measured("without", [])])
    with_, without = data_of(page)
    assert (with_["title"], without["title"]) == ("with", "without")
    assert "dnnl" in with_["colours"]
    assert "dnnl" not in without["colours"]


def test_a_build_is_read_back() -> None:
    build = measured()
    saved = json.loads(json.dumps(build_to_json(build)))
    assert build_from_json(saved, "file") == replace(build, passes=())


@pytest.mark.parametrize("place", ["report", "steps", "roof", "memory", "title", "call_seconds"])
def test_what_is_no_build_is_refused(place: str) -> None:
    saved = json.loads(json.dumps(build_to_json(measured())))
    for wrong in ({"gflops": "x"}, [1], "x" if place != "title" else 1):
        with pytest.raises(ky.errors.ArtifactCorruptedError):
            build_from_json({**saved, place: wrong}, "file")


def test_changed_lines_are_complete() -> None:
    before, after = ["a", "b", "c", "d", "e", "f"], ["b", "x", "a", "d", "f", "y"]
    changed = list(diff_lines(before, after))
    assert [line for sign, line in changed if sign != "+"] == before
    assert [line for sign, line in changed if sign != "-"] == after


def test_scripts_are_whole() -> None:
    page = view_page([Build("m", report_of(3))])
    script = page.split("<script>")[1].split("</script>")[0]
    assert re.findall(r"^\$\w+", script, re.MULTILINE) == []
    assert script.count("{") == script.count("}")
