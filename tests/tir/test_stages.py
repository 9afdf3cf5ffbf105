"""Which blocks are one loop nest, and what of them needs no memory."""

from __future__ import annotations

import pytest

from kernelyard.tir import PrimFunc, parse_primfunc
from kernelyard.tir.common_loops import with_common_axes
from kernelyard.tir.expr import Axis, index
from kernelyard.tir.stages import Stage, element_at_zeros, make_stages, with_zeros, without_single_steps

HEAD = """input x: Tensor[(4, 6), float32]
input y: Tensor[(6, 4), float32]
output out: Tensor[(4, 6), float32]
{}
"""
LOCAL = "local t: Tensor[(4, 6), float32]"
MAP = "block t(i: 4, j: 6) {\n  t[i, j] = exp(x[i, j])\n}\n"
SUM = "block t(i: 4, j: 6, reduce k: 6) {\n  t[i, j] = mul(x[i, k], y[k, i])\n  reducer sum\n}\n"


def function_of(blocks: str, locals_: str = LOCAL) -> PrimFunc:
    return parse_primfunc(HEAD.format(locals_) + blocks)


def stages_of(blocks: str, locals_: str = LOCAL, moves: bool = False) -> list[Stage]:
    function = function_of(blocks, locals_)
    return make_stages(map(with_common_axes, function.blocks), function.locals, moves=moves)


def a_map(body: str, place: str = "i, j") -> str:
    return f"block out(i: 4, j: 6) {{\n  out[{place}] = {body}\n}}\n"


@pytest.mark.parametrize("first", [MAP, SUM])
def test_a_map_takes_elements_from_registers(first):
    (stage,) = stages_of(first + a_map("neg(t[i, j])"))
    assert [block.output.name for block in stage.blocks] == ["t", "out"]
    assert {buffer.name for buffer in stage.inside} == {"t"}
    assert {buffer.name for buffer in stage.written} == {"out"}
    assert stage.points == 24


def test_elements_of_other_points_are_read_from_memory():
    first, second = stages_of(MAP + a_map("t[i, sub(5, j)]"))
    assert not first.inside
    assert not second.inside


def test_a_reduction_begins_a_stage():
    reduced = "block out(i: 4, j: 6, reduce k: 6) {\n  out[i, j] = t[i, k]\n  reducer max\n}\n"
    assert [len(stage.blocks) for stage in stages_of(MAP + reduced)] == [1, 1]


def test_scans_are_followed_by_nothing():
    scan = "block t(i: 4, j: 6, reduce k: 6) {\n  t[i, k] = x[i, j]\n}\n"
    first, _ = stages_of(scan + a_map("t[i, j]"))
    assert first.is_ordered
    assert not stages_of(SUM + a_map("t[i, j]"))[0].is_ordered


def test_writing_elsewhere_is_for_those_who_can():
    mirrored = a_map("t[i, j]", "i, sub(5, j)")
    assert len(stages_of(MAP + mirrored)) == 2
    assert len(stages_of(MAP + mirrored, moves=True)) == 1


def test_a_part_of_a_buffer_has_loops_of_its_own():
    assert len(stages_of(MAP + a_map("x[i, j]", "i, sub(5, j)"), moves=True)) == 2


def test_contractions_use_both_operands_again():
    product = "block out(i: 4, j: 6, reduce k: 6) {\n  out[i, j] = mul(x[i, k], z[k, j])\n  reducer sum\n}\n"
    function = parse_primfunc("input z: Tensor[(6, 6), float32]\n" + HEAD.format("") + product)
    (stage,) = make_stages(map(with_common_axes, function.blocks))
    assert stage.is_contraction
    assert not stages_of(SUM + a_map("t[i, j]"))[0].is_contraction


def test_a_table_of_places_is_no_operand_of_a_contraction():
    looked_up = (
        "block out(i: 4, j: 6, reduce k: 6) {\n  out[i, j] = mul(x[i, k], z[i, places[j], k])\n  reducer sum\n}\n"
    )
    inputs = "input z: Tensor[(4, 6, 6), float32]\ninput places: Tensor[(6,), int64]\n"
    (stage,) = make_stages(map(with_common_axes, parse_primfunc(inputs + HEAD.format("") + looked_up).blocks))
    assert not stage.is_contraction


# --- axes of extent 1 -------------------------------------------------------------------------------------------------
SINGLE = """input x: Tensor[(1, 6), float32]
output out: Tensor[(1, 6), float32]
block out(i: 1, j: 6, reduce k: 1, reduce l: {}) {{
  out[i, j] = x[add(i, k), j]
  reducer sum
}}
"""


def test_reads_are_at_zero():
    (block,) = parse_primfunc(SINGLE.format(3).replace("x[add(i, k), j]", "x[i, j]")).blocks
    named = with_zeros(with_common_axes(block))
    assert named.loads[0].indices == (index(0), Axis("s1"))
    assert named.indices[0] == Axis("s0")
    assert element_at_zeros(named).indices == (index(0), Axis("s1"))


@pytest.mark.parametrize("extent", [3, 1])
def test_reduce_axes_of_one_step_go_but_for_one(extent):
    (block,) = parse_primfunc(SINGLE.format(extent)).blocks
    found = without_single_steps(block)
    assert [axis.name for axis in found.reduce_axes] == ["l"]
    assert found.loads[0].indices == (Axis("i"), Axis("j"))
