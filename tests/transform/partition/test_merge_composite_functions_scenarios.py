"""MergeCompositeFunctions: the scenarios of TVM's test_transform_merge_composite_functions.py, by their names."""

from __future__ import annotations

import numpy as np

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Call, FunctionBuilder, IRModule, TupleType, Var
from kernelyard.ir.verify import verify
from kernelyard.patterns import is_op, wildcard
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.lowering.legalize_ops import LegalizeOps
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.partition.merge_composite_functions import MergeCompositeFunctions

X = np.random.default_rng(0).standard_normal((1, 4, 6, 6), dtype=np.float32)
WEIGHT = np.linspace(-1, 1, 4 * 4 * 3 * 3, dtype=np.float32).reshape(4, 4, 3, 3)
CONV_RELU = ("dnnl.conv2d_relu", is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard())))
DNNL = [
    CONV_RELU,
    *((f"dnnl.{op}", is_op(op)(wildcard(), varargs=True)) for op in ("nn.relu", "add", "nn.gelu", "reshape", "split")),
]
OTHER = [(f"other.{op}", is_op(op)(wildcard())) for op in ("exp", "tanh", "abs")]


def start() -> tuple[FunctionBuilder, Var]:
    b = FunctionBuilder()
    return b, b.input("x", X.shape)


def conv_relu(b: FunctionBuilder, x: Var) -> Var:
    return b.op("nn.relu", b.op("nn.conv2d", x, WEIGHT, strides=(1, 1), padding=(1, 1, 1, 1)))


def merged(b: FunctionBuilder, *results: Var, legalize: bool = False) -> IRModule:
    module = verify(IRModule({"main": b.function(*results)}))
    fused = FuseOpsByPattern([*DNNL, *OTHER])(module)
    after = verify(MergeCompositeFunctions()(LegalizeOps()(fused) if legalize else fused))
    assert_same_meaning(module, after, [X])
    return after


def regions(module: IRModule, function: str = "main") -> list[tuple[str, int]]:
    """Backend and number of composites of each region that a function calls, in order."""
    calls = [b.value for b in module.graph_functions()[function].bindings if isinstance(b.value, Call)]
    functions = [module.graph_functions()[call.op_name] for call in calls if call.op_name in module.graph_functions()]
    return [(f.attrs["Codegen"], sum(isinstance(b.value, Call) for b in f.bindings)) for f in functions]


def test_conv2d_relu_x2() -> None:
    b, x = start()
    assert regions(merged(b, conv_relu(b, conv_relu(b, x)))) == [("dnnl", 2)]


def test_diamond_cyclic_dep() -> None:
    """The middle operator belongs to another backend, so the ends cannot be one region."""
    b, x = start()
    first = conv_relu(b, x)
    result = b.op("add", b.op("nn.gelu", first), b.op("exp", first))
    assert regions(merged(b, result)) == [("dnnl", 2), ("other", 1), ("dnnl", 1)]


def test_diamond() -> None:
    b, x = start()
    first = conv_relu(b, x)
    assert regions(merged(b, b.op("add", b.op("nn.gelu", first), b.op("nn.relu", first)))) == [("dnnl", 4)]


def test_merge_producers() -> None:
    """Two producers that do not feed each other join the region of their consumer."""
    b, x = start()
    assert regions(merged(b, b.op("add", b.op("nn.relu", x), b.op("nn.gelu", x)))) == [("dnnl", 3)]


def test_merge_producers_cyclic_dep() -> None:
    """One of the two producers is needed by another backend's operator that feeds the consumer too."""
    b, x = start()
    left, right = b.op("nn.relu", x), b.op("nn.gelu", x)
    result = b.op("add", b.op("add", left, right), b.op("exp", right))
    found = regions(merged(b, result))
    assert sum(count for backend, count in found if backend == "dnnl") == 4
    assert [backend for backend, _ in found] == ["dnnl", "other", "dnnl"]


def test_merge_compiler_regions_example() -> None:
    """The graph of the RFC: https://discuss.tvm.apache.org/t/relay-improved-graph-partitioning-algorithm/5830"""
    b, x = start()
    first, second = b.op("nn.relu", x), b.op("nn.gelu", x)
    third = b.op("add", first, second)
    fourth = b.op("exp", first)
    fifth = b.op("tanh", fourth)
    sixth = b.op("add", third, third)
    found = regions(merged(b, b.op("add", sixth, fifth), b.op("abs", fifth)))
    assert sorted(found) == [("dnnl", 1), ("dnnl", 4), ("other", 3)]


def test_mixed_non_composite() -> None:
    """Operators that no backend took stay where they are, between regions."""
    b, x = start()
    after = merged(b, conv_relu(b, b.op("sin", conv_relu(b, x))))
    assert regions(after) == [("dnnl", 1), ("dnnl", 1)]
    assert "sin" in [getattr(binding.value, "op_name", "") for binding in after["main"].bindings]


def test_reshape() -> None:
    b, x = start()
    result = b.op("nn.relu", b.op("reshape", conv_relu(b, x), shape=(4, 36)))
    assert regions(merged(b, result)) == [("dnnl", 3)]


def test_handle_existence_of_call_tir() -> None:
    b, x = start()
    after = merged(b, conv_relu(b, b.op("sin", conv_relu(b, x))), legalize=True)
    assert regions(after) == [("dnnl", 1), ("dnnl", 1)]
    assert "call_tir" in [getattr(binding.value, "op_name", "") for binding in after["main"].bindings]


def test_tuple_projection_merging() -> None:
    b, x = start()
    parts = b.op("split", x, axis=1, sections=(2, 2))
    after = merged(b, b.op("add", b.get(parts, 0), b.get(parts, 1)))
    assert regions(after) == [("dnnl", 2)]


def test_tuple_projection_preserves_real_cycle_boundary() -> None:
    """An item does not hide that the other one comes back through another backend."""
    b, x = start()
    parts = b.op("split", x, axis=1, sections=(2, 2))
    assert regions(merged(b, b.op("add", b.get(parts, 0), b.op("exp", b.get(parts, 1))))) == [
        ("dnnl", 1),
        ("other", 1),
        ("dnnl", 1),
    ]


def test_tuple_projection_rejects_escaping_tuple() -> None:
    """A whole tuple does not leave a region: its items do, and outside it is put together again."""
    b, x = start()
    parts = b.op("split", x, axis=1, sections=(2, 2))
    whole = b.tuple(b.get(parts, 0), b.get(parts, 1))
    after = merged(b, b.op("nn.relu", b.get(parts, 0)), b.get(whole, 1))
    (region,) = [f for f in after.graph_functions().values() if "Codegen" in f.attrs]
    assert isinstance(region.result_type, TupleType)
    assert not any(isinstance(field, TupleType) for field in region.result_type.fields)


def test_every_entry_function() -> None:
    """Guards against a defect of TVM: the pass worked on the function called main, and on no other."""
    functions = {}
    for name in ("first", "second"):
        b, x = start()
        functions[name] = b.function(conv_relu(b, conv_relu(b, x)))
    after = verify(MergeCompositeFunctions()(FuseOpsByPattern(DNNL)(IRModule(functions))))
    called = [after[name].bindings[0].value.op_name for name in functions]
    assert called[0] == called[1]
    assert after[called[0]].attrs["Codegen"] == "dnnl"


def test_a_path_through_a_branch() -> None:
    """A branch or a loop is outside of every region: what it reads and what reads it are not merged around it."""
    branch = FunctionBuilder()
    then = branch.function(conv_relu(branch, branch.input("x", X.shape)), attrs={"private": True})
    branch = FunctionBuilder()
    otherwise = branch.function(branch.op("exp", branch.input("x", X.shape)), attrs={"private": True})
    b, x = start()
    flag = b.input("flag", (), "bool")
    first = conv_relu(b, x)
    chosen = b.if_(flag, "then", "otherwise", [first], x.type)
    main = b.function(b.op("add", b.op("nn.gelu", first), conv_relu(b, chosen)))
    module = verify(IRModule({"main": main, "then": then, "otherwise": otherwise}))
    after = verify(MergeCompositeFunctions()(FuseOpsByPattern([*DNNL, *OTHER])(module)))
    assert regions(after) == [("dnnl", 2), ("dnnl", 2)]
    assert regions(after, "then") == [("dnnl", 1)]
    assert regions(after, "otherwise") == [("other", 1)]
    for choice in (True, False):
        assert_same_meaning(module, after, [X, np.array(choice)])


SCENARIOS = {
    "MergeCompositeFunctions: a path through a branch": test_a_path_through_a_branch,
    "MergeCompositeFunctions: conv2d_relu_x2": test_conv2d_relu_x2,
    "MergeCompositeFunctions: diamond_cyclic_dep": test_diamond_cyclic_dep,
    "MergeCompositeFunctions: diamond": test_diamond,
    "MergeCompositeFunctions: merge_producers": test_merge_producers,
    "MergeCompositeFunctions: merge_producers_cyclic_dep": test_merge_producers_cyclic_dep,
    "MergeCompositeFunctions: merge_compiler_regions_example": test_merge_compiler_regions_example,
    "MergeCompositeFunctions: mixed_non_composite": test_mixed_non_composite,
    "MergeCompositeFunctions: reshape": test_reshape,
    "MergeCompositeFunctions: handle_existence_of_call_tir": test_handle_existence_of_call_tir,
    "MergeCompositeFunctions: tuple_projection_merging": test_tuple_projection_merging,
    "MergeCompositeFunctions: tuple_projection_preserves_real_cycle_boundary": test_tuple_projection_preserves_real_cycle_boundary,
    "MergeCompositeFunctions: tuple_projection_rejects_escaping_tuple": test_tuple_projection_rejects_escaping_tuple,
    "MergeCompositeFunctions: every function, not main alone (defect of TVM)": test_every_entry_function,
}
