"""MergeCompositeFunctions: how composites become regions, and where cycles keep them apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Call, FunctionBuilder, GlobalVar, IRModule, TupleGetItem, TupleType, Var
from kernelyard.ir.verify import verify
from kernelyard.patterns import FusionPattern, is_op, wildcard
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.partition.merge_composite_functions import MergeCompositeFunctions

X = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32)
TAKEN_BY_A = ("nn.relu", "tanh", "add", "multiply", "sigmoid", "abs", "split", "mean")
A = [FusionPattern(f"a.{op}", is_op(op)(wildcard(), varargs=True)) for op in TAKEN_BY_A]
B = [FusionPattern("b.exp", is_op("exp")(wildcard()))]


def partitioned(module: IRModule, patterns: Sequence[FusionPattern] = (*A, *B)) -> IRModule:
    verify(module)
    merged = MergeCompositeFunctions()(FuseOpsByPattern(patterns)(module))
    verify(merged)
    assert_same_meaning(module, merged, [X])
    return merged


def regions(module: IRModule) -> dict[str, list[str]]:
    """The ops of each region, by symbol."""
    found: dict[str, list[str]] = {}
    for name, function in module.graph_functions().items():
        if "Codegen" in function.attrs:
            assert function.attrs["global_symbol"] == name
            calls = [binding.value for binding in function.bindings if isinstance(binding.value, Call)]
            found[name] = [call.op_name.removeprefix("fused_") for call in calls]
    return found


def calls(module: IRModule, function: str = "main") -> list[str]:
    values = (binding.value for binding in module.graph_functions()[function].bindings)
    return [value.op_name for value in values if isinstance(value, Call)]


def start() -> tuple[FunctionBuilder, Var]:
    b = FunctionBuilder()
    return b, b.input("x", X.shape)


def test_a_chain_is_one_region() -> None:
    b, x = start()
    merged = partitioned(IRModule({"main": b.function(b.op("tanh", b.op("nn.relu", x)))}))
    assert regions(merged) == {"a_0": ["nn_relu", "tanh"]}
    assert calls(merged) == ["a_0"]


def test_a_diamond_is_one_region() -> None:
    b, x = start()
    r = b.op("nn.relu", x)
    merged = partitioned(IRModule({"main": b.function(b.op("add", b.op("tanh", r), b.op("abs", r)))}))
    assert regions(merged) == {"a_0": ["nn_relu", "tanh", "abs", "add"]}


def test_a_diamond_through_another_backend_is_not_merged_through() -> None:
    b, x = start()
    r = b.op("nn.relu", x)
    merged = partitioned(IRModule({"main": b.function(b.op("add", b.op("exp", r), b.op("abs", r)))}))
    assert regions(merged) == {"a_0": ["nn_relu", "abs"], "b_0": ["exp"], "a_1": ["add"]}
    assert calls(merged) == ["a_0", "b_0", "a_1"]


def test_a_diamond_through_a_plain_op_is_not_merged_through() -> None:
    b, x = start()
    r = b.op("nn.relu", x)
    merged = partitioned(IRModule({"main": b.function(b.op("add", b.op("sin", r), b.op("abs", r)))}))
    assert calls(merged) == ["a_0", "sin", "a_1"]


def test_residual_and_squeeze_excite_are_one_region() -> None:
    b, x = start()
    y = x
    for _ in range(5):
        z = b.op("nn.relu", y)
        gate = b.op("sigmoid", b.op("tanh", b.op("mean", z, axes=(1,), keepdims=True)))
        y = b.op("add", y, b.op("multiply", z, gate))
    merged = partitioned(IRModule({"main": b.function(y)}))
    assert calls(merged) == ["a_0"]
    assert len(regions(merged)["a_0"]) == 30


def test_producers_of_one_consumer_are_merged() -> None:
    b, x = start()
    s = b.op("sin", x)
    merged = partitioned(IRModule({"main": b.function(b.op("add", b.op("nn.relu", s), b.op("tanh", x)))}))
    assert calls(merged) == ["sin", "a_0"]
    assert regions(merged) == {"a_0": ["nn_relu", "tanh", "add"]}


def test_what_does_not_come_back_is_no_obstacle() -> None:
    b, x = start()
    r = b.op("nn.relu", x)
    t = b.op("tanh", r)
    merged = partitioned(IRModule({"main": b.function(b.op("abs", t), b.op("sin", r), b.op("cos", t))}))
    assert regions(merged) == {"a_0": ["nn_relu", "tanh", "abs"]}
    main = merged.graph_functions()["main"]
    assert isinstance(main.bindings[0].value.type, TupleType)
    assert [binding.value.index for binding in main.bindings if isinstance(binding.value, TupleGetItem)] == [0, 1, 2]


def test_two_backends_do_not_wait_for_each_other() -> None:
    b, x = start()
    a0, b0 = b.op("nn.relu", x), b.op("exp", x)
    a1, b1 = b.op("add", a0, b0), b.op("exp", a0)
    b2 = b.op("exp", b.op("exp", b0))
    merged = partitioned(IRModule({"main": b.function(a1, b1, b.op("add", b1, b2))}))
    assert sum(len(ops) for ops in regions(merged).values()) == 7


def test_the_rfc_example() -> None:
    """The graph of the relay design text: alternating backends on two branches that join."""
    b, x = start()
    l1, r1 = b.op("nn.relu", x), b.op("abs", x)
    top = b.op("add", l1, r1)
    e1, t1 = b.op("exp", top), b.op("tanh", top)
    e2, t2 = b.op("exp", e1), b.op("nn.relu", t1)
    joined = b.op("multiply", e2, t2)
    merged = partitioned(IRModule({"main": b.function(b.op("sigmoid", joined))}))
    assert regions(merged) == {
        "a_0": ["nn_relu", "abs", "add", "tanh", "nn_relu"],
        "b_0": ["exp", "exp"],
        "a_1": ["multiply", "sigmoid"],
    }


def test_only_the_backends_asked_for() -> None:
    b, x = start()
    module = IRModule({"main": b.function(b.op("exp", b.op("exp", b.op("tanh", b.op("nn.relu", x)))))})
    fused = FuseOpsByPattern([*A, *B])(module)
    merged = MergeCompositeFunctions(["b"])(fused)
    assert regions(merged) == {"b_0": ["exp", "exp"]}
    both = verify(MergeCompositeFunctions(["a"])(merged))
    assert regions(both) == {"b_0": ["exp", "exp"], "a_0": ["nn_relu", "tanh"]}
    assert MergeCompositeFunctions()(both) is both
    assert MergeCompositeFunctions()(module) is module


def test_every_entry_function_is_treated_and_equal_regions_are_shared() -> None:
    functions = {}
    for name in ("encode", "decode"):
        b, x = start()
        functions[name] = b.function(b.op("tanh", b.op("nn.relu", x)))
    merged = MergeCompositeFunctions()(FuseOpsByPattern(A)(IRModule(functions)))
    verify(merged)
    assert calls(merged, "encode") == calls(merged, "decode") == ["a_0"]


def test_items_of_a_tuple_go_with_their_producer() -> None:
    b, x = start()
    parts = b.op("split", b.op("nn.relu", x), axis=1, sections=(1, 3))
    first, second = b.get(parts, 0), b.get(parts, 1)
    merged = partitioned(IRModule({"main": b.function(b.op("add", b.op("tanh", first), second))}))
    assert regions(merged) == {"a_0": ["nn_relu", "split", "tanh", "add"]}
    assert calls(merged) == ["a_0"]


def test_items_of_a_plain_tuple_stay_outside() -> None:
    b, x = start()
    parts = b.op("split", b.op("nn.relu", x), axis=1, sections=(2, 2))
    first, second = b.get(parts, 0), b.get(parts, 1)
    patterns = [pattern for pattern in A if pattern.name != "a.split"]
    merged = partitioned(IRModule({"main": b.function(b.op("add", b.op("tanh", first), second))}), patterns)
    assert calls(merged) == ["a_0", "split", "a_1"]


def test_an_item_does_not_hide_a_cycle() -> None:
    b, x = start()
    parts = b.op("split", b.op("nn.relu", x), axis=1, sections=(2, 2))
    first, second = b.get(parts, 0), b.get(parts, 1)
    merged = partitioned(IRModule({"main": b.function(b.op("add", b.op("sin", first), second))}))
    assert regions(merged) == {"a_0": ["nn_relu", "split"], "a_1": ["add"]}


def test_a_whole_tuple_that_escapes_is_put_together_outside() -> None:
    b, x = start()
    parts = b.op("split", b.op("nn.relu", x), axis=1, sections=(2, 2))
    y = b.op("tanh", b.get(parts, 0))
    module = IRModule({"main": b.function(parts)})
    assert calls(partitioned(module)) == ["a_0"]
    both = b.tuple(b.get(parts, 1), y)
    merged = partitioned(IRModule({"main": b.function(both)}))
    assert regions(merged) == {"a_0": ["nn_relu", "split", "tanh"]}


def test_constants_lifted_to_arguments_are_lifted_again() -> None:
    b, x = start()
    y = b.op("multiply", b.op("add", x, np.ones(4, np.float32)), np.ones(4, np.float32) * 3)
    module = IRModule({"main": b.function(y)})
    merged = verify(MergeCompositeFunctions()(FuseOpsByPattern(A, bind_constants=False)(module)))
    assert_same_meaning(module, merged, [X])
    assert len(merged.graph_functions()["a_0"].params) == 3


def test_results_keep_variables_names_and_origins() -> None:
    b = FunctionBuilder()
    x = b.input("x", X.shape)
    y = b.op("tanh", b.op("nn.relu", x, origin="node 'R' (Relu)"), origin="node 'T' (Tanh)")
    merged = partitioned(IRModule({"main": b.function(y)}))
    assert merged.graph_functions()["main"].bindings[0].var.origin == "node 'T' (Tanh)"
    inner = merged.graph_functions()["a_0"].bindings
    assert [binding.var.origin for binding in inner] == ["node 'R' (Relu)", "node 'T' (Tanh)"]
    assert isinstance(inner[0].value, Call)
    assert isinstance(inner[0].value.op, GlobalVar)
