"""MergeCompilerRegions: the scenarios of Relay's test_pass_merge_compiler_regions.py, by their names, and more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from interpreted_backend import InterpretedBackend

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Call, Function, FunctionBuilder, IRModule, all_ops
from kernelyard.ir.printer import to_text
from kernelyard.ir.verify import verify
from kernelyard.patterns.composite import op_names
from kernelyard.patterns.op_rules import accept_all, register_op_rule, unregister_op_rules
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard.transform.partition.run_codegen import RunCodegen
from kernelyard_tvm_compat.annotate_target import AnnotateTarget
from kernelyard_tvm_compat.merge_compiler_regions import MergeCompilerRegions
from kernelyard_tvm_compat.partition_graph import PartitionGraph

X = np.random.default_rng(0).standard_normal((10, 4), dtype=np.float32)


@pytest.fixture(autouse=True)
def _clean_rules() -> Iterator[None]:
    yield
    for target in ("A", "B"):
        unregister_op_rules(target)


def takes(target: str, *ops: str) -> None:
    for op in ops:
        register_op_rule(op, target, accept_all)


def merged(module: IRModule) -> IRModule:
    verify(module)
    after = verify(MergeCompilerRegions()(AnnotateTarget(["A", "B"])(module)))
    assert_same_meaning(module, after, [X])
    return after


def regions(module: IRModule, function: str = "main") -> list[tuple[str, tuple[str, ...]]]:
    """Target and ops of each region that a function calls, in order; other operators by name."""
    calls = [b.value for b in module.graph_functions()[function].bindings if isinstance(b.value, Call)]
    functions = module.graph_functions()
    return [
        (functions[c.op_name].attrs["Codegen"], op_names(functions[c.op_name])) if c.op_name in module else ("", (c.op_name,))
        for c in calls
    ]  # fmt: skip


def test_diamond_graph_fanouts() -> None:
    """What lies on a path through another target is not merged across it."""
    takes("A", "nn.relu", "add", "abs")
    b = FunctionBuilder()
    first = b.op("nn.relu", b.input("x", X.shape))
    second = b.op("abs", first)
    third = b.op("exp", first)  # no target takes it
    result = b.op("add", second, third)
    assert regions(merged(IRModule({"main": b.function(result)}))) == [
        ("A", ("nn.relu", "abs")),
        ("", ("exp",)),
        ("A", ("add",)),
    ]


def test_example_graph() -> None:
    """The RFC's example: as few regions as no cycle allows."""
    takes("A", "nn.relu", "add", "multiply")
    takes("B", "abs", "subtract")
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    a1, a2 = b.op("nn.relu", x), b.op("multiply", x, x)
    b1 = b.op("abs", a1)
    a3 = b.op("add", a1, a2)
    b2 = b.op("subtract", b1, a3)
    a4 = b.op("add", a3, b2)
    found = regions(merged(IRModule({"main": b.function(a4, b.op("abs", b2))})))
    assert sorted(target for target, _ in found) == ["A", "A", "B"]
    assert {frozenset(ops) for _, ops in found} == {
        frozenset({"nn.relu", "multiply", "add"}),
        frozenset({"abs", "subtract"}),
        frozenset({"add"}),
    }


def private(*ops: str) -> Function:
    """A branch: unary operators one after another."""
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    for op in ops:
        x = b.op(op, x)
    return b.function(x, attrs={"private": True})


def test_if_else() -> None:
    """The condition and the operands of a branch are on the paths through it; inside, each branch has its own regions."""
    takes("A", "nn.relu", "abs", "add", "multiply", "tanh", "greater", "max")
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    first = b.op("nn.relu", x)
    second = b.op("tanh", b.op("abs", first))
    flag = b.op("greater", b.op("max", second), 0.5)
    chosen = b.if_(flag, "then", "otherwise", [first], x.type)
    main = b.function(b.op("add", b.op("multiply", chosen, chosen), second))
    before = verify(IRModule({"main": main, "then": private("abs", "tanh"), "otherwise": private("abs", "exp")}))
    after = verify(MergeCompilerRegions()(AnnotateTarget(["A", "B"])(before)))
    assert regions(after) == [
        ("A", ("nn.relu", "abs", "tanh", "max", "greater")),
        ("", ("if",)),
        ("A", ("multiply", "add")),
    ]
    assert regions(after, "then") == [("A", ("abs", "tanh"))]
    assert regions(after, "otherwise") == [("A", ("abs",)), ("", ("exp",))]
    for inputs in (X, -np.abs(X)):
        assert_same_meaning(before, after, [inputs])
        codegens = {"A": InterpretedBackend("A").codegen}
        assert_same_meaning(before, verify(RunCodegen(codegens, strict=True)(PartitionGraph()(after))), [inputs])


def test_a_cycle_through_several_regions_is_seen() -> None:
    takes("A", "nn.relu", "add", "tanh")
    takes("B", "abs", "exp")
    b = FunctionBuilder()
    first = b.op("nn.relu", b.input("x", X.shape))
    between = b.op("exp", b.op("tanh", b.op("abs", first)))
    found = regions(merged(IRModule({"main": b.function(b.op("add", first, between))})))
    assert [target for target, _ in found] == ["A", "B", "A", "B", "A"]


def test_regions_without_a_path_between_them_stay_apart() -> None:
    takes("A", "nn.relu", "tanh")
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    found = regions(merged(IRModule({"main": b.function(b.op("nn.relu", x), b.op("tanh", x))})))
    assert found == [("A", ("nn.relu",)), ("A", ("tanh",))]


def test_items_go_with_the_region_that_makes_the_tuple() -> None:
    takes("A", "split", "add")
    b = FunctionBuilder()
    parts = b.op("split", b.input("x", X.shape), axis=1, sections=(2, 2))
    after = merged(IRModule({"main": b.function(b.op("add", b.get(parts, 0), b.get(parts, 1)))}))
    assert regions(after) == [("A", ("split", "add"))]
    assert len(after.functions) == 2, "the marks of single calls are gone"


def test_every_entry_function() -> None:
    """Guards against a defect of TVM: MergeCompositeFunctions worked on main alone."""
    takes("A", "nn.relu", "tanh")
    entries = {}
    for name in ("main", "other"):
        b = FunctionBuilder()
        entries[name] = b.function(b.op("tanh", b.op("nn.relu", b.input("x", X.shape))))
    after = merged(IRModule(entries))
    assert list(after.functions) == ["main", "other", after["main"].bindings[0].value.op_name]


def test_nothing_marked_is_no_change() -> None:
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", X.shape)))})
    assert MergeCompilerRegions()(module) is module


@settings(max_examples=40, deadline=None)
@given(modules(symbolic=True))
def test_the_whole_flow_keeps_the_meaning_of_random_modules(program) -> None:
    ops = [op.name for op in all_ops() if op.pure and not op.opaque_type]
    for i, op in enumerate(ops):
        if i % 3:
            register_op_rule(op, "AB"[i % 2], accept_all)
    try:
        marked = verify(AnnotateTarget(["A", "B"])(program.module))
        partitioned = verify(PartitionGraph()(verify(MergeCompilerRegions()(marked))))
        assert to_text(partitioned) == to_text(PartitionGraph()(MergeCompilerRegions()(marked)))
        codegens = {name: InterpretedBackend(name).codegen for name in "AB"}
        compiled = verify(RunCodegen(codegens, strict=True)(partitioned))
        for after in (marked, partitioned, compiled):
            assert_same_meaning(program.module, after, program.inputs)
    finally:
        for target in "AB":
            unregister_op_rules(target)


SCENARIOS = {
    "MergeCompilerRegions: diamond_graph_fanouts": test_diamond_graph_fanouts,
    "MergeCompilerRegions: example_graph": test_example_graph,
    "MergeCompilerRegions: if_else": test_if_else,
}
