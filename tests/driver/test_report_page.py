"""The page of `kernelyard explain --html`: one file, the graph in it, nothing overlaps, every edge points down."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from kernelyard.driver.layered_layout import GAP_X, layered_layout
from kernelyard.driver.report_page import MAX_BOXES, report_page
from kernelyard.runtime.report import Node, Placed, PlacedRegion, Reason, Report


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
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["nodes"][2]["reasons"] == [["acme", "no-match", "acme.floor", "expected <tanh>, found </script>"]]
    assert "90.0 %" in page
    assert page.count("</script>") == 2


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
    layout = layered_layout(sizes, edges)
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
