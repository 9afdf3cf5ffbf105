"""Backends rewrite their own regions: what is taken back, what is refused, and that a failure costs nothing."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

import kernelyard.ops  # noqa: F401
from kernelyard.errors import PluginContractError
from kernelyard.ir import Call, Function, FunctionBuilder, GlobalVar, IRModule, get_op, parse_module, to_text, verify
from kernelyard.ir.visitor import RewriteWith
from kernelyard.patterns.composite import op_names
from kernelyard.placement.partition import partition
from kernelyard.testing.reference import assert_same_meaning, evaluate
from kernelyard.transform.partition.optimize_regions import OptimizeRegions
from kernelyard.transform.partition.run_codegen import RunCodegen

X = np.linspace(-2, 2, 8, dtype=np.float32)


def placed(backends=("acme",)):
    """Two regions of acme, relu and sigmoid then relu, which share a composite; floor keeps them apart."""
    b = FunctionBuilder()
    y = b.op("nn.relu", b.input("x", (8,)))
    result = b.op("subtract", b.op("nn.relu", b.op("sigmoid", b.op("floor", y))), b.op("tanh", y))
    module = verify(IRModule({"main": b.function(result)}))
    ops = {"acme": ["nn.relu", "sigmoid"], "other": ["tanh"]}
    return verify(partition(module, [InterpretedBackend(name, ops[name]) for name in backends]))


def replaced(function, old, new, **attrs):
    """The function with calls of one operator become calls of another."""

    def rewrite(_, var, value):
        is_old = isinstance(value, Call) and value.op_name == old
        return Call(get_op(new), value.args, attrs) if is_old else value

    return RewriteWith(rewrite).mutate(function)


def relu_by_clip(region):
    """The same function by another operator, in the composites."""
    return region.with_functions(
        {
            name: replaced(f, "nn.relu", "clip", min=0.0)
            for name, f in region.graph_functions().items()
            if "Composite" in f.attrs
        }
    )


def ops_of(module):
    return sorted(op for f in module.graph_functions().values() if "Composite" in f.attrs for op in op_names(f))


class Recorder:
    def __init__(self):
        self.violations = []

    def record_violation(self, backend, symbols, message):
        self.violations.append((backend, tuple(symbols), message))


def test_a_backend_rewrites_its_own_regions():
    before = placed(("acme", "other"))
    after = verify(OptimizeRegions({"acme": relu_by_clip})(before))
    assert ops_of(before) == ["nn.relu", "sigmoid", "tanh"]
    assert ops_of(after) == ["clip", "clip", "sigmoid", "tanh"]
    assert_same_meaning(before, after, [X])
    assert to_text(parse_module(to_text(after))) == to_text(after)
    assert called(after) == called(before), "calls and symbols stay"


def test_the_region_is_an_ordinary_function_with_its_composites():
    seen = []

    def look(region):
        seen.append(region)
        return region

    before = placed(("acme", "other"))
    assert OptimizeRegions({"acme": look})(before) is before
    names = [name for name in before.functions if name.startswith("acme")]
    assert [list(region.entry_functions()) for region in seen] == [[name] for name in names]
    assert [len(region.functions) for region in seen] == [2, 3]


def test_composites_that_regions_share_are_rewritten_for_one_of_them():
    """What one region's optimizer makes of a composite must not reach the others that call it."""
    before = placed()
    first = next(name for name in before.functions if name.startswith("acme"))
    after = verify(
        OptimizeRegions({"acme": lambda region: relu_by_clip(region) if first in region else region})(before)
    )
    assert ops_of(after) == ["clip", "nn.relu", "sigmoid"]
    assert_same_meaning(before, after, [X])


def test_composites_may_be_left_out_and_added():
    def without_sigmoid(region):
        """abs(x) in place of sigmoid and relu, as a new composite under a name that is taken elsewhere."""
        (name,) = region.entry_functions()
        if len(region.functions) == 2:
            return region
        b = FunctionBuilder()
        params = [b.parameter(param.type, param.name) for param in region[name].params]
        result = b.call(GlobalVar("main"), params, type_=region[name].result_type)
        return IRModule({name: b.function(result), "main": replaced(region["fused_nn_relu"], "nn.relu", "abs")})

    before = placed()
    after = verify(OptimizeRegions({"acme": without_sigmoid})(before))
    assert ops_of(after) == ["abs", "nn.relu"]
    compiled = RunCodegen({"acme": InterpretedBackend("acme").codegen}, strict=True)(after)
    relu = np.maximum(X, 0)
    np.testing.assert_allclose(evaluate(compiled, [X])[0], np.floor(relu) - np.tanh(relu), rtol=1e-6)
    assert list(compiled.functions) == ["main"]


def _raises(region):
    raise ZeroDivisionError("no time")


def _one_function(change):
    """A failure that changes one function: the region's, or that of the first composite."""

    def optimize(region):
        (name,) = region.entry_functions()
        composite = next(other for other in region.functions if other != name)
        return change(region, name, composite)

    return optimize


def _with_nothing_in_it(region, name, composite):
    return region.with_functions({name: Function(region[name].params, (), region[name].result)})


def _composite_of_integers(region, name, composite):
    f = region[composite]
    b = FunctionBuilder()
    params = [b.parameter(param.type, param.name) for param in f.params]
    return region.with_functions({composite: b.function(b.op("astype", *params, dtype="int32"), attrs=f.attrs)})


def _another_size(region, name, composite):
    b = FunctionBuilder()
    return region.with_functions({name: b.function(b.op("nn.relu", b.input("x", (9,))))})


def _another_name(region, name, composite):
    return region.without_functions({name}).with_functions({"other": region[name]})


def _calls_a_stranger(region, name, composite):
    f = region[composite]
    return region.with_functions({composite: Function(f.params, f.bindings, f.result)})


def _changes_what_it_is_shown(region):
    (name,) = region.entry_functions()
    region[name].bindings[0].var.name = "mine"
    return region


FAILURES = {
    "changes what it is shown": (_changes_what_it_is_shown, "it changed the module"),
    "raises": (_raises, "no time"),
    "nothing": (lambda region: None, "no module"),
    "malformed": (_one_function(_with_nothing_in_it), "before"),
    "a composite of another type": (_one_function(_composite_of_integers), "must return the type"),
    "a region of another type": (_one_function(_another_size), "type of its region"),
    "a region under another name": (_one_function(_another_name), "no function @acme_"),
    "no composite": (_one_function(_calls_a_stranger), "composites alone"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_recorded_and_the_region_stays(failure, caplog):
    hook, _ = FAILURES[failure]
    before, recorder = placed(), Recorder()
    with caplog.at_level(logging.WARNING):
        assert OptimizeRegions({"acme": hook}, recorder)(before) is before
    assert [(backend, symbols) for backend, symbols, _ in recorder.violations] == [("acme", ())] * 2
    assert "acme_" in recorder.violations[0][2], "the region is named"
    assert "stay unchanged" in caplog.text


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_raises_where_that_is_asked_for(failure):
    hook, says = FAILURES[failure]
    with pytest.raises(PluginContractError, match="the optimization by acme of the region acme_") as info:
        OptimizeRegions({"acme": hook}, strict=True)(placed())
    assert says in str(info.value), str(info.value)
    assert info.value.__cause__ is not None


def test_one_region_that_fails_does_not_stop_the_others():
    def first_fails(region):
        return None if len(region.functions) == 2 else relu_by_clip(region)

    recorder = Recorder()
    after = verify(OptimizeRegions({"acme": first_fails}, recorder)(placed()))
    assert ops_of(after) == ["clip", "nn.relu", "sigmoid"]
    assert len(recorder.violations) == 1


SCENARIOS = {
    "PartitionGraph: extern_opt, region by region": test_a_backend_rewrites_its_own_regions,
}
