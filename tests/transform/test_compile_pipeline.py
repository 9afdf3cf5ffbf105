"""CompilePipeline: named points, and what stands before, after or in place of them."""

from __future__ import annotations

import pytest

import kernelyard.ops  # noqa: F401
from kernelyard.errors import PassError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.tir import PrimFunc
from kernelyard.transform.compile_pipeline import OFFLOAD, PRECISION, CompilePipeline, default_pipeline
from kernelyard.transform.pass_infra.pass_base import Pass, Repeat, Sequential, module_pass
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination


@module_pass("mark")
def mark(module, context):
    return module.with_attrs(mark=module.attrs.get("mark", 0) + 1)


def names(passes) -> list[str]:
    return [each.name for each in passes]


def stage(pipeline: CompilePipeline, name: str) -> list[str]:
    (found,) = (each for each in pipeline.passes if each.name == name)
    assert isinstance(found, Sequential)
    return names(found.passes)


def test_the_points_are_the_stages_and_their_passes():
    points = default_pipeline(composes_attention=True).points
    stages = [point for point in points if "." not in point]
    assert stages == ["import", "simplify", PRECISION, "compose_attention", "quantized", OFFLOAD, "legalize"]
    assert {"simplify.fold_batch_norm", "legalize.fuse_ops"} <= set(points)
    assert len(set(points)) == len(points)


def test_narrow_floats_are_widened_before_the_precision_is_applied():
    stages = names(default_pipeline(widened=["float16"]).passes)
    assert stages.index("simplify") < stages.index("widen_floats") < stages.index(PRECISION)
    assert "widen_floats" not in names(default_pipeline().passes)


@pytest.mark.parametrize("point", ["import", "simplify", PRECISION, OFFLOAD, "legalize"])
def test_passes_stand_before_and_after_a_stage(point):
    pipeline = default_pipeline()
    place = names(pipeline.passes).index(point)
    for changed, at in ((pipeline.before(point, mark), place), (pipeline.after(point, mark), place + 1)):
        expected = names(pipeline.passes)
        expected.insert(at, "mark")
        assert names(changed.passes) == expected
    assert "mark" not in names(pipeline.passes)


def test_what_occurs_several_times_is_one_point():
    old = stage(default_pipeline(), "simplify")
    first, *_, last = (place for place, name in enumerate(old) if name == "fold_constants")
    point = "simplify.fold_constants"
    before, after = (
        stage(each, "simplify")
        for each in (default_pipeline().before(point, mark), default_pipeline().after(point, mark))
    )
    assert before == [*old[:first], "mark", *old[first:]]
    assert after == [*old[: last + 1], "mark", *old[last + 1 :]]
    replaced = stage(default_pipeline().replace(point, mark, mark), "simplify")
    assert "fold_constants" not in replaced
    assert replaced.count("mark") == 2 * old.count("fold_constants")


def test_stages_keep_their_name_and_kind():
    pipeline = default_pipeline().replace("simplify", mark).without("legalize")
    assert stage(pipeline, "simplify") == ["mark"]
    assert stage(pipeline, "legalize") == []
    inner = Repeat([mark, DeadCodeElimination()], "again")
    changed = pipeline.after("simplify", inner).without("again.mark")
    (again,) = (each for each in changed.passes if each.name == "again")
    assert isinstance(again, Repeat)
    assert names(again.passes) == ["dead_code_elimination"]


def test_changes_are_told_in_order():
    pipeline = default_pipeline().replace("simplify", mark).before(OFFLOAD, mark, mark).without("legalize.fuse_ops")
    assert pipeline.changes == ("mark in place of simplify", "mark, mark before offload", "without legalize.fuse_ops")
    assert default_pipeline().changes == ()


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda p: p.before("simplfy", mark), "did you mean 'simplify'"),
        (lambda p: p.after("simplify.fuse_ops", mark), "legalize.fuse_ops"),
        (lambda p: p.without("fold_batch_norm"), "simplify.fold_batch_norm"),
        (lambda p: p.replace(OFFLOAD, mark), "before or after"),
        (lambda p: p.without(PRECISION), "before or after"),
        (lambda p: p.after("simplify"), "no pass is given"),
        (lambda p: p.replace("simplify"), "without"),
        (lambda p: p.after("simplify", DeadCodeElimination), "create it"),
        (lambda p: p.after("simplify", print), "module_pass"),
    ],
)
def test_mistakes_are_told(edit, expected):
    with pytest.raises(PassError) as caught:
        edit(default_pipeline())
    assert expected in str(caught.value)


def test_as_a_pass_it_does_what_needs_no_backend():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2,))))})
    lowered = default_pipeline().after(OFFLOAD, mark)(module)
    assert lowered.attrs["mark"] == 1
    assert [type(f) for name, f in lowered.functions.items() if name != "main"] == [PrimFunc]


def test_stages_between_two_others():
    pipeline = default_pipeline().after("simplify", mark)
    assert names(pipeline.between(None, PRECISION)) == ["import", "simplify", "mark"]
    assert names(pipeline.between(OFFLOAD, None)) == ["legalize"]
    assert all(isinstance(each, Pass) for each in pipeline.passes)
