"""The page of `kernelyard explain --html`: one file, the graph in it, nothing overlaps, every edge points down."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kernelyard.driver.report.layered_layout import GAP_X, lay_out_in_layers
from kernelyard.driver.report.report_graph import MAX_BOXES, MAX_LETTERS, boxes_of
from kernelyard.driver.report.report_page import LIBRARY_COLOURS, OTHER_COLOURS, VIEW_COLOUR, report_page
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import Node, Placed, PlacedRegion, Reason


def report_of(count: int) -> Report:
    """Alternately a pair of ops on a library and one that stays, in a chain with skips."""
    nodes: list[Node] = []
    for i in range(count):
        mine = i % 3 < 2
        place = ("acme", "acme.pair", "acme_0") if mine else ("native-cpu", "", "")
        reasons = () if mine else (Reason("acme", "acme.floor", "no-match", "expected <tanh>, found </script>"),)
        inputs = tuple(sorted({i - 1, max(0, i - 4)})) if i else ()
        group = 2 * (i // 3) + (0 if mine else 1)
        reads, gives = (("x",) if not i else ()), (("y",) if i == count - 1 else ())
        op = "matmul" if mine else "floor"
        nodes.append(Node("main", f"node {i}", op, "Tensor", *place, group, 5, 8, inputs, reads, gives, reasons))
    placed = (Placed("acme", "matmul", 2, 90, 8), Placed("native-cpu", "floor", 1, 10, 8))
    return Report(
        "cpu", placed, (PlacedRegion("acme", "acme.pair", ("matmul",), "acme_0", "node 0"),), nodes=tuple(nodes)
    )


def graph_of(page: str) -> ElementTree.Element:
    found = re.search(r"<svg.*</svg>", page, re.DOTALL)
    assert found
    return ElementTree.fromstring(found.group())


def facts_of(page: str, number: int) -> dict[str, object]:
    """What the page's script knows of a node."""
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    texts = data["texts"]
    *named, flops, nbytes, inputs, reasons = data["nodes"][number]
    names = ("name", "op", "type", "backend", "pattern", "function", "entry")
    facts = dict(zip(names, (texts[i] for i in named), strict=True))
    whys = [tuple(texts[i] for i in data["reasons"][r]) for r in reasons]
    return {**facts, "flops": flops, "bytes": nbytes, "inputs": tuple(inputs), "reasons": whys}


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 has it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("count", [1, 30])
def test_each_group_is_a_box_and_each_op_a_row(count: int) -> None:
    report = report_of(count)
    page = report_page(report, "a <model>")
    graph = graph_of(page)
    boxes = [g for g in graph.iter("g") if g.get("data-nodes")]
    assert len(boxes) == len({node.group for node in report.nodes})
    assert len([g for g in graph.iter("g") if g.get("class") == "op"]) == count
    assert "a &lt;model&gt;" in page
    assert "<model>" not in page


def test_it_needs_no_network_and_holds_every_fact() -> None:
    page = report_page(report_of(9), "m")
    assert not re.search(r"(src|href)=|https?:|@import|url\(", page)
    assert facts_of(page, 2)["reasons"] == [("acme", "no-match", "acme.floor", "expected <tanh>, found </script>")]
    assert "90.0 %" in page
    assert page.count("</script>") == 2


def test_each_node_is_described_as_the_report_has_it() -> None:
    report = report_of(12)
    page = report_page(report, "m")
    for number, node in enumerate(report.nodes):
        facts = facts_of(page, number)
        assert facts["reasons"] == [(r.backend, r.code, r.pattern, r.message) for r in node.reasons]
        assert {name: value for name, value in facts.items() if name != "reasons"} == {
            name: getattr(node, name) for name in facts if name != "reasons"
        }


def test_declines_stand_beside_their_op() -> None:
    graph = graph_of(report_page(report_of(4), "m"))
    ops = {g.get("data-node"): g for g in graph.iter("g") if g.get("class") == "op"}
    texts = [text.text for text in ops["2"].iter("text")]
    assert texts == ["floor", "acme: no-match"]
    assert "acme: no-match: expected <tanh>, found </script>" in (ops["2"].findtext("title") or "")
    assert [text.text for text in ops["0"].iter("text")] == ["matmul"]


@pytest.mark.parametrize("colour", [*LIBRARY_COLOURS, *OTHER_COLOURS])
def test_text_is_readable_on_every_colour(colour: str) -> None:
    assert 1.05 / (luminance(colour) + 0.05) >= 4.5


def test_text_is_readable_on_the_colour_of_views() -> None:
    ink = "#1d2430"
    assert (luminance(VIEW_COLOUR) + 0.05) / (luminance(ink) + 0.05) >= 4.5
    assert f".pale {{ color: {ink}; }}" in report_page(report_of(3), "m")


def test_boxes_of_several_backends_say_so() -> None:
    """A run of ops that is drawn as one box has each backend's share below it."""
    graph = graph_of(report_page(report_of(5000), "m"))
    box = next(g for g in graph.iter("g") if g.get("data-nodes"))
    shares = [rect for rect in box.iter("rect") if rect.get("class") == "share"]
    assert len({rect.get("fill") for rect in shares}) == len(shares) == 2
    assert (box.get("aria-label") or "").endswith("on acme and native-cpu")


def test_long_names_are_cut_in_the_middle() -> None:
    node = report_of(1).nodes[0]
    long = replace(node, reads=("the_first_of_" + "x" * 200 + "_inputs",))
    (pill,) = (box for box in boxes_of([long]) if box.kind == "input")
    assert len(pill.lines[0].text) <= MAX_LETTERS
    assert pill.lines[0].text.startswith("the_first_of_")
    assert pill.lines[0].text.endswith("_inputs")


def test_pages_of_large_models_stay_small() -> None:
    assert len(report_page(report_of(10_000), "m")) < 1_000_000


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript engine is installed here")
def test_the_script_is_javascript(tmp_path: Path) -> None:
    script = report_page(report_of(3), "m").split("<script>")[1].split("</script>")[0]
    (tmp_path / "page.js").write_text(script, encoding="utf-8")
    done = subprocess.run(["node", "--check", str(tmp_path / "page.js")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_large_graphs_are_collapsed() -> None:
    page = report_page(report_of(5000), "m")
    boxes = [g for g in graph_of(page).iter("g") if g.get("data-nodes")]
    assert len(boxes) <= MAX_BOXES
    assert f"5000 ops are drawn as {len(boxes)} boxes" in page
    first, last = boxes[0].get("data-nodes"), boxes[-1].get("data-nodes")
    assert (first.split("-")[0], last.split("-")[1]) == ("0", "4999")


def test_a_report_of_nothing() -> None:
    assert "nothing to run" in report_page(Report("cpu"), "m")


@pytest.mark.parametrize("seed", range(20))
def test_boxes_do_not_overlap_and_edges_point_down(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 60)
    sizes = [(rng.uniform(20, 120), rng.uniform(10, 60)) for _ in range(count)]
    edges = sorted({tuple(sorted(rng.sample(range(count), 2))) for _ in range(rng.randint(0, 90)) if count > 1})
    layout = lay_out_in_layers(sizes, edges)
    places = [(x, y, *size) for (x, y), size in zip(layout.centres, sizes, strict=True)]
    for i, (x, y, w, h) in enumerate(places):
        assert x - w / 2 >= -1e-6
        assert x + w / 2 <= layout.width + 1e-6
        assert y + h <= layout.height + 1e-6
        for other_x, other_y, other_w, other_h in places[:i]:
            apart = abs(x - other_x) - (w + other_w) / 2
            assert apart >= GAP_X - 1e-6 or y >= other_y + other_h or other_y >= y + h
    for (source, target), path in zip(edges, layout.paths, strict=True):
        assert path[0] == (places[source][0], places[source][1] + places[source][3])
        assert path[-1] == places[target][:2]
        assert all(a[1] <= b[1] for a, b in pairwise(path))


def test_edges_from_one_box_share_a_line() -> None:
    """A value that is read in many layers is drawn as one line with branches."""
    chain = [(i, i + 1) for i in range(1, 9)]
    layout = lay_out_in_layers([(60, 20)] * 10, [*chain, *((0, i) for i in range(2, 10))])
    trunk = layout.paths[-1]
    for path in layout.paths[len(chain) :]:
        assert path[:-1] == trunk[: len(path) - 1]
