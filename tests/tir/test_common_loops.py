"""Which blocks may run as one loop nest, or in one loop over rows, and what that saves."""

from __future__ import annotations

import pytest

from kernelyard import dims
from kernelyard.tir import ComputeBlock, parse_primfunc
from kernelyard.tir.common_loops import (
    ElementwiseLoops,
    bytes_moved,
    may_run_together,
    may_share_rows,
    points_of,
    run_well_together,
    shares_loads,
    with_common_axes,
)

BUFFERS = """input x: Tensor[(64, 96), float32]
input y: Tensor[(64, 96), float32]
input t: Tensor[(96, 64), float32]
input c: Tensor[(96,), float32]
input w: Tensor[(64, 8), float32]
output a: Tensor[(64, 96), float32]
output b: Tensor[(64, 96), float32]
output r: Tensor[(64,), float32]
output s: Tensor[(64,), float32]
output q: Tensor[(64, 8), float32]
output p: Tensor[(96,), float32]
output z: Tensor[(64, 94), float32]
"""
WRITTEN = {"a": (64, 96), "b": (64, 96), "r": (64,), "s": (64,), "q": (64, 8), "p": (96,), "z": (64, 94)}
MAP_A = "block a(i: 64, j: 96) {\n  a[i, j] = exp(x[i, j])\n}\n"
ROW_R = "block r(i: 64, reduce k: 96) {\n  r[i] = x[i, k]\n  reducer sum\n}\n"


def blocks(text: str) -> list[ComputeBlock]:
    """The blocks of a text, in a function that has written every output before."""
    before = ""
    for name, shape in WRITTEN.items():
        axes = ", ".join(f"i{number}: {extent}" for number, extent in enumerate(shape))
        indices = ", ".join(f"i{number}" for number in range(len(shape)))
        before += f"block before_{name}({axes}) {{\n  {name}[{indices}] = float32(0.0)\n}}\n"
    return [with_common_axes(block) for block in parse_primfunc(BUFFERS + before + text).blocks[len(WRITTEN) :]]


def a_map(buffer: str, body: str) -> list[ComputeBlock]:
    return blocks(f"block m(u: 64, v: 96) {{\n  {buffer}[u, v] = {body}\n}}\n")


def rows(buffer: str, body: str, inner: int = 96) -> list[ComputeBlock]:
    return blocks(f"block m(u: 64, reduce k: {inner}) {{\n  {buffer}[u] = {body}\n  reducer max\n}}\n")


# --- maps ---------------------------------------------------------------------------------------------------------
def test_maps_over_the_same_points():
    second = a_map("b", "neg(a[u, v])")
    assert points_of([*blocks(MAP_A), *second]) == (64, 96)
    assert may_run_together(ElementwiseLoops(blocks(MAP_A)), ElementwiseLoops(second))


@pytest.mark.parametrize(
    "second",
    [
        a_map("b", "neg(a[u, 0])"),  # another element of what was just written
        a_map("a", "neg(x[u, v])"),  # written twice
        blocks("block z(i: 64, j: 94) {\n  z[i, j] = x[i, j]\n}\n"),  # other points
        blocks("block z(i: 64, j: 94) {\n  b[i, add(j, 1)] = x[i, j]\n}\n"),  # a part of a buffer
        blocks(ROW_R),
    ],
)
def test_no_common_points(second: list[ComputeBlock]):
    assert points_of([*blocks(MAP_A), *second]) is None
    assert not may_run_together(ElementwiseLoops(blocks(MAP_A)), ElementwiseLoops(second))


@pytest.mark.parametrize(
    ("body", "good"),
    [
        ("neg(y[u, v])", True),
        ("add(y[u, v], c[v])", True),
        ("neg(t[v, u])", False),
        ("neg(t[v, 0])", False),
        ("neg(a[u, v])", True),
    ],
)
def test_neighbours_lie_along_one_axis(body: str, good: bool):
    assert run_well_together(ElementwiseLoops(blocks(MAP_A)), ElementwiseLoops(a_map("b", body))) is good


def test_those_that_turn_alike_run_well():
    first, second = a_map("a", "neg(t[v, u])"), a_map("b", "exp(t[v, u])")
    assert run_well_together(ElementwiseLoops(first), ElementwiseLoops(second))


@pytest.mark.parametrize(
    ("body", "shared"),
    [
        ("neg(x[u, v])", True),
        ("neg(a[u, v])", True),
        ("neg(y[u, v])", False),
        ("neg(x[u, 0])", False),
    ],
)
def test_what_both_read(body: str, shared: bool):
    assert shares_loads(ElementwiseLoops(blocks(MAP_A)), ElementwiseLoops(a_map("b", body))) is shared


def test_one_element_for_many_points_is_little_to_share():
    first, second = a_map("a", "add(x[u, v], c[v])"), a_map("b", "add(y[u, v], c[v])")
    assert not shares_loads(ElementwiseLoops(first), ElementwiseLoops(second))


def test_each_nest_is_looked_at_once():
    """Pairs of kernels are many: what is asked of one of them is kept."""
    nest = ElementwiseLoops(a_map("a", "add(x[u, v], c[v])"))
    assert nest.strides is nest.strides
    assert nest.points is nest.points
    assert {load.buffer.name for load in nest.distinct_loads} == {"x"}


def test_bytes():
    assert bytes_moved(a_map("a", "add(x[u, v], y[u, v])")) == 64 * 96 * 4 * 3
    n = dims.symbol("n")
    text = "input x: Tensor[(n,), float32]\noutput y: Tensor[(), float32]\n"
    reduction = parse_primfunc(text + "block r(reduce k: <n>) {\n  y[] = x[k]\n  reducer sum\n}\n")
    assert bytes_moved(reduction.blocks) == n * 8


# --- rows ---------------------------------------------------------------------------------------------------------
def test_reductions_of_one_tensor():
    assert may_share_rows(blocks(ROW_R), rows("s", "x[u, k]"))


def test_a_map_of_what_is_reduced_and_of_the_result():
    assert may_share_rows(blocks(MAP_A), rows("s", "a[u, k]"))
    assert may_share_rows(blocks(MAP_A), rows("s", "x[u, k]"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (blocks(ROW_R), rows("s", "y[u, k]")),  # nothing in common
        (blocks(MAP_A), a_map("b", "neg(x[u, v])")),  # no reduction
        (blocks(ROW_R), rows("s", "t[k, u]")),  # across
        (a_map("a", "t[v, u]"), rows("s", "a[u, k]")),  # transposed, then along
        (blocks(ROW_R), blocks("block m(u: 96, reduce k: 64) {\n  p[u] = x[k, u]\n  reducer max\n}\n")),
        (rows("r", "w[u, k]", 8), rows("s", "w[u, k]", 8)),  # short rows
        (blocks(MAP_A), rows("s", "a[0, k]")),  # a row that another one writes
        (rows("r", "x[0, k]"), rows("s", "x[u, k]")),  # the first reads one row
        (  # each of the second's results is a row of its own
            blocks(ROW_R),
            blocks("block m(u: 64, v: 8, reduce k: 96) {\n  q[u, v] = x[u, k]\n  reducer max\n}\n"),
        ),
        (blocks(ROW_R), blocks("block m(u: 64, reduce k: 96) {\n  s[u] = x[u, k]\n}\n")),  # in order
        (blocks(MAP_A), rows("s", "add(x[u, k], a[0, k])")),  # a row that another one writes, beside one of its own
    ],
)
def test_no_common_rows(first: list[ComputeBlock], second: list[ComputeBlock]):
    assert not may_share_rows(first, second)


def test_few_rows_leave_threads_idle():
    text = "input x: Tensor[({0}, 96), float32]\noutput r: Tensor[({0},), float32]\noutput s: Tensor[({0},), float32]\n"
    for name in "rs":
        text += f"block {name}(i: {{1}}, reduce k: 96) {{{{\n  {name}[i] = x[i, k]\n  reducer sum\n}}}}\n"
    for count, extent, shared in ((31, 31, False), (32, 32, True), ("n", "<n>", True)):
        first, second = (with_common_axes(b) for b in parse_primfunc(text.format(count, extent)).blocks)
        assert may_share_rows([first], [second]) is shared
