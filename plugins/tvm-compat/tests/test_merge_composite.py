"""MergeComposite: the scenarios of Relay's test_pass_merge_composite.py, by their names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.ir.verify import verify
from kernelyard.patterns import Accept, Decline, is_const, is_op, is_tuple_get_item, wildcard
from kernelyard.patterns.composite import op_names
from kernelyard.patterns.registry import PatternLike
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard_tvm_compat.merge_composite import MergeComposite

SHAPE = (4, 4)
ADD_RELU = ("acme.add_relu", is_op("nn.relu")(is_op("add")(wildcard(), wildcard())))
RELU = ("acme.relu", is_op("nn.relu")(wildcard()))


def merged(b: FunctionBuilder, results: Sequence[Var], table: Sequence[PatternLike]) -> IRModule:
    """The module after the pass, which must mean what it meant."""
    module = verify(IRModule({"main": b.function(*results)}))
    after = verify(MergeComposite(table)(module))
    inputs = [np.random.default_rng(i).standard_normal(p.tensor_type.shape, dtype=np.float32) for i, p in enumerate(b.params)]  # fmt: skip
    assert_same_meaning(module, after, inputs)
    return after


def composites(module: IRModule) -> list[tuple[str, str]]:
    """Pattern and origin of each composite."""
    functions = module.graph_functions().values()
    return sorted(
        (f.attrs["Composite"], f.attrs["PartitionedFromPattern"]) for f in functions if "Composite" in f.attrs
    )


def inputs(b: FunctionBuilder, count: int) -> list[Var]:
    return [b.input(f"x{i}", SHAPE) for i in range(count)]


def outside(module: IRModule) -> list[str]:
    return [getattr(binding.value, "op_name", "") for binding in module.graph_functions()["main"].bindings]


def test_simple() -> None:
    b = FunctionBuilder()
    x, y = inputs(b, 2)
    after = merged(b, [b.op("nn.relu", b.op("add", x, y))], [ADD_RELU])
    assert composites(after) == [("acme.add_relu", "add_nn.relu_")]
    assert outside(after) == ["fused_add_nn_relu"]


def test_branch() -> None:
    """Operands of the pattern may come from one value, by two ways."""
    b = FunctionBuilder()
    x, y = inputs(b, 2)
    common = b.op("subtract", x, y)
    pattern = is_op("nn.relu")(is_op("add")(is_op("exp")(wildcard()), wildcard()))
    after = merged(b, [b.op("nn.relu", b.op("add", b.op("exp", common), common))], [("acme.branch", pattern)])
    assert composites(after) == [("acme.branch", "exp_add_nn.relu_")]
    assert outside(after) == ["subtract", "fused_exp_add_nn_relu"]


def test_reuse_call() -> None:
    """A call that is read twice inside one match is one call there."""
    b = FunctionBuilder()
    x, y = inputs(b, 2)
    total = b.op("add", x, y)
    shared = is_op("add")(wildcard(), wildcard())
    after = merged(b, [b.op("multiply", b.op("nn.relu", total), total)], [("acme.p", is_op("multiply")(is_op("nn.relu")(shared), shared))])  # fmt: skip
    assert composites(after) == [("acme.p", "add_nn.relu_multiply_")]


def test_whatever_follows_a_convolution() -> None:
    """The pattern "a convolution, then anything" takes what reads it, and the composite says what that was."""
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    table = [("acme.conv2d_with_something", wildcard()(conv))]
    weight = np.ones((3, 3, 1, 1), np.float32)
    followers = {
        "nn.relu": lambda b, y: b.op("nn.relu", y),
        "add": lambda b, y: b.op("add", np.ones((3, 1, 1), np.float32), y),
        "concat": lambda b, y: b.op("concat", b.input("other", (1, 3, 4, 4)), y, axis=1),
    }
    for name, follow in followers.items():
        b = FunctionBuilder()
        y = b.op("nn.conv2d", b.input("x", (1, 3, 4, 4)), weight)
        after = merged(b, [b.op("exp", follow(b, y))], table)
        assert composites(after) == [("acme.conv2d_with_something", f"nn.conv2d_{name}_")]
        assert outside(after)[1:] == ["exp"]


def test_multiple_patterns() -> None:
    b = FunctionBuilder()
    x, y = inputs(b, 2)
    weight = np.ones((2, 4, 1, 1), np.float32)
    data = b.op("reshape", x, shape=(1, 4, 2, 2))
    conv = b.op("nn.conv2d", data, weight, strides=(1, 1), padding=(0, 0, 0, 0))
    relu = b.op("nn.relu", b.op("add", conv, np.ones((2, 1, 1), np.float32)))
    other = b.op("nn.relu", b.op("add", x, y))
    conv_pattern = is_op("nn.relu")(is_op("add")(is_op("nn.conv2d")(wildcard(), is_const()), is_const()))
    after = merged(b, [relu, other], [("acme.conv_bias_relu", conv_pattern), ADD_RELU])
    assert composites(after) == [("acme.add_relu", "add_nn.relu_"), ("acme.conv_bias_relu", "nn.conv2d_add_nn.relu_")]


def test_optional_pattern() -> None:
    pattern = is_op("add")(wildcard(), wildcard()).optional(lambda p: is_op("nn.relu")(p))
    for with_relu in (True, False):
        b = FunctionBuilder()
        total = b.op("add", *inputs(b, 2))
        after = merged(b, [b.op("nn.relu", total) if with_relu else total], [("acme.add", pattern)])
        assert composites(after) == [("acme.add", "add_nn.relu_" if with_relu else "add_")]


def test_merge_order() -> None:
    """The table's order decides, not the length of a match; FuseOpsByPattern prefers the longest chain."""
    b = FunctionBuilder()
    x, y = inputs(b, 2)
    chain = is_op("abs")(is_op("nn.relu")(is_op("add")(wildcard(), wildcard())))
    abs_relu = is_op("abs")(is_op("nn.relu")(wildcard()))
    result = b.op("abs", b.op("nn.relu", b.op("add", x, y)))
    long, middle, short = ("acme.A", chain), ("acme.B", abs_relu), ADD_RELU
    assert composites(merged(b, [result], [long, middle, short])) == [("acme.A", "add_nn.relu_abs_")]
    assert composites(merged(b, [result], [middle, long, short])) == [("acme.B", "nn.relu_abs_")]
    assert composites(merged(b, [result], [short, middle, long])) == [("acme.add_relu", "add_nn.relu_")]
    fused = FuseOpsByPattern([short, middle, long])(IRModule({"main": b.function(result)}))
    assert [f.attrs["Composite"] for f in fused.graph_functions().values() if "Composite" in f.attrs] == ["acme.B"]


def test_parallel() -> None:
    b = FunctionBuilder()
    x, y = inputs(b, 2)
    branches = [b.op("nn.relu", b.op("add", x, y)), b.op("nn.relu", b.op("add", y, b.op("exp", x)))]
    after = merged(b, [b.op("multiply", *branches)], [ADD_RELU])
    assert outside(after).count("fused_add_nn_relu") == 2, "equal groups share one function"


def test_multiple_input_subgraphs() -> None:
    b = FunctionBuilder()
    xs = inputs(b, 4)
    sums = [b.op("nn.relu", b.op("add", *pair)) for pair in (xs[:2], xs[2:])]
    pattern = is_op("subtract")(ADD_RELU[1], is_op("nn.relu")(is_op("add")(wildcard(), wildcard())))
    after = merged(b, [b.op("subtract", *sums)], [("acme.whole", pattern)])
    assert composites(after) == [("acme.whole", "add_nn.relu_add_nn.relu_subtract_")]


def test_tuple_get_item() -> None:
    b = FunctionBuilder()
    (x,) = inputs(b, 1)
    parts = b.op("split", x, axis=1, sections=(1, 3))
    pattern = is_op("nn.relu")(is_tuple_get_item(is_op("split")(wildcard()), 1))
    after = merged(b, [b.op("nn.relu", b.get(parts, 1))], [("acme.part", pattern)])
    assert composites(after) == [("acme.part", "split_TupleGetItem1_nn.relu_")]


def test_with_check() -> None:
    b = FunctionBuilder()
    x, y = inputs(b, 2)
    result = b.op("nn.relu", b.op("add", x, y))
    declines = (*ADD_RELU, lambda match: Decline("size", "too small"))
    accepts = (*ADD_RELU, lambda match: Accept())
    assert composites(merged(b, [result], [declines])) == []
    assert composites(merged(b, [result], [accepts])) == [("acme.add_relu", "add_nn.relu_")]
    assert composites(merged(b, [result], [declines, ("acme.relu", RELU[1])])) == [("acme.relu", "nn.relu_")]


def test_diamond_not_merge() -> None:
    """An intermediate that is read outside of the match stops it."""
    b = FunctionBuilder()
    x, y = inputs(b, 2)
    total = b.op("add", x, y)
    after = merged(b, [b.op("multiply", b.op("nn.relu", total), b.op("exp", total))], [ADD_RELU])
    assert composites(after) == []


def test_type_check() -> None:
    """Types are known when a check is asked, also of what an earlier pattern made."""
    seen: list[tuple[object, ...]] = []

    def check(match):
        seen.append((match.root.type.shape, [i.type.dtype for i in match.inputs]))
        return Accept()

    b = FunctionBuilder()
    x, y = inputs(b, 2)
    result = b.op("nn.relu", b.op("exp", b.op("nn.relu", b.op("add", x, y))))
    exp_relu = is_op("nn.relu")(is_op("exp")(wildcard()))
    merged(b, [result], [ADD_RELU, ("acme.exp_relu", exp_relu, check)])
    assert seen == [((4, 4), ["float32"])]


def test_einsum_reshape() -> None:
    """A contraction (here: a product) with its reshape is one composite; the reshape's shape is in the function."""
    b = FunctionBuilder()
    x, y = inputs(b, 2)
    pattern = is_op("reshape")(is_op("matmul")(wildcard(), wildcard()))
    after = merged(b, [b.op("reshape", b.op("matmul", x, y), shape=(2, 8))], [("acme.einsum_reshape", pattern)])
    (composite,) = [f for f in after.graph_functions().values() if "Composite" in f.attrs]
    assert op_names(composite) == ("matmul", "reshape")
    assert composite.result_type.shape == (2, 8)


SCENARIOS = {
    "MergeComposite: simple": test_simple,
    "MergeComposite: branch": test_branch,
    "MergeComposite: reuse_call": test_reuse_call,
    "MergeComposite: multiple_patterns": test_multiple_patterns,
    "MergeComposite: optional_pattern": test_optional_pattern,
    "MergeComposite: merge_order": test_merge_order,
    "MergeComposite: parallel": test_parallel,
    "MergeComposite: multiple_input_subgraphs": test_multiple_input_subgraphs,
    "MergeComposite: tuple_get_item": test_tuple_get_item,
    "MergeComposite: with_check": test_with_check,
    "MergeComposite: diamond_not_merge": test_diamond_not_merge,
    "MergeComposite: type_check": test_type_check,
    "MergeComposite: einsum_reshape": test_einsum_reshape,
}
