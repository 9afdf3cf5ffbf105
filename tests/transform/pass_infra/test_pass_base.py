"""Passes, contexts, sequences, pipelines, and the errors that name the pass."""

from __future__ import annotations

import pytest

import kernelyard.ops  # noqa: F401
from kernelyard.errors import IRError, PassError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext, Repeat, Sequential, function_pass, module_pass
from kernelyard.transform.pipelines import get_pipeline, pipeline_names, purpose_of, register_pipeline


def small_module() -> IRModule:
    b = FunctionBuilder()
    main = b.function(b.op("nn.relu", b.input("x", (2,))))
    c = FunctionBuilder()
    composite = c.function(c.op("tanh", c.input("x", (2,))), attrs={"Composite": "acme.tanh"})
    return IRModule({"main": main, "part": composite})


@module_pass("mark")
def mark(module, context):
    return module.with_attrs(mark=context.option("mark.value", 1))


@module_pass("fail")
def fail(module, context):
    raise ZeroDivisionError("oops")


def test_options_reach_the_pass():
    assert mark(small_module()).attrs["mark"] == 1
    with PassContext({"mark.value": 7}):
        assert mark(small_module()).attrs["mark"] == 7
    assert mark(small_module()).attrs["mark"] == 1


def test_contexts_nest_and_are_left_after_errors():
    with PassContext({"a": 1}) as outer:
        with pytest.raises(PassError), PassContext():
            fail(small_module())
        assert PassContext.current() is outer


def test_function_passes_leave_composites_alone():
    seen = []

    @function_pass("look")
    def look(function, module, context):
        seen.append(function)
        return function

    module = small_module()
    assert look(module) is module
    assert seen == [module["main"]]


def test_function_passes_replace_what_they_change():
    relabel = function_pass("relabel")(lambda function, module, context: function.with_attrs(seen=True))
    module = small_module()
    new = relabel(module)
    assert new["main"].attrs["seen"]
    assert new["part"] is module["part"]
    assert "seen" not in module["main"].attrs


def test_unexpected_errors_name_the_pass_and_those_before_it():
    with PassContext(), pytest.raises(PassError, match="pass 'fail' failed") as info:
        Sequential([mark, mark, fail])(small_module())
    assert info.value.where == "pass 'fail', run after: mark, mark"
    assert isinstance(info.value.__cause__, ZeroDivisionError)


def test_our_own_errors_stay_what_they_are_and_get_a_note():
    @module_pass("refuse")
    def refuse(module, context):
        raise IRError("no")

    with pytest.raises(IRError, match="no") as info:
        refuse(small_module())
    assert info.value.__notes__ == ["in pass 'refuse', run after: nothing"]


def test_a_pass_must_return_a_module():
    with pytest.raises(PassError, match="must return an IRModule"):
        module_pass("nothing")(lambda module, context: None)(small_module())


def test_history_has_the_passes_in_order():
    with PassContext() as context:
        get_pipeline("clean")(small_module())
        mark(small_module())
    assert context.history == [
        "canonicalize",
        "fold_constants",
        "eliminate_common_subexpr",
        "dead_code_elimination",
        "mark",
    ]


def test_repeated_passes_run_until_none_of_them_changes_anything():
    @module_pass("count")
    def count(module, context):
        done = module.attrs.get("count", 0)
        return module.with_attrs(count=done + 1) if done < 3 else module

    with PassContext() as context:
        repeat = Repeat([count, count], "again")
        once = repeat(small_module())
        assert once.attrs["count"] == 3
        assert context.history == ["count"] * 6
        assert repeat(once) is once


def test_passes_are_abstract():
    with pytest.raises(TypeError):
        Pass()  # pyright: ignore[reportAbstractUsage]


def test_pipelines_are_found_by_name():
    assert {"clean", "simplify"} <= set(pipeline_names())
    with pytest.raises(PassError, match="no pipeline") as info:
        get_pipeline("simplfy")
    assert info.value.hint == "did you mean 'simplify'?"
    with pytest.raises(PassError, match="already called"):
        register_pipeline("simplify", list)


@pytest.mark.parametrize("name", pipeline_names())
def test_a_pipeline_says_what_it_is_for(name):
    assert purpose_of(name).endswith(".")
    assert get_pipeline(name).name == name
    assert get_pipeline(name).passes
