"""PartitionGraph: the scenarios of Relay's test_pass_partition_graph.py, by their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import Call, Constant, Function, FunctionBuilder, IRModule, TupleType, Var, get_op
from kernelyard.ir.verify import verify
from kernelyard.ir.visitor import RewriteWith
from kernelyard.patterns import is_op, wildcard
from kernelyard.patterns.composite import op_names
from kernelyard.patterns.op_rules import accept_all, register_op_rule, unregister_op_rules
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform.interprocedural.bind_params import BindParams
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES, RunCodegen
from kernelyard.transform.simplify.fold_constants import FoldConstants
from kernelyard.transform.simplify.simplify_inference import SimplifyInference
from kernelyard_tvm_compat.annotate_target import AnnotateTarget
from kernelyard_tvm_compat.merge_compiler_regions import MergeCompilerRegions
from kernelyard_tvm_compat.merge_composite import MergeComposite
from kernelyard_tvm_compat.partition_graph import PartitionGraph

X = np.random.default_rng(0).standard_normal((10, 10), dtype=np.float32)
TARGETS = ("ccompiler", "dnnl", "test-target", "A", "B")


@pytest.fixture(autouse=True)
def _clean_rules() -> Iterator[None]:
    yield
    for target in TARGETS:
        unregister_op_rules(target)


def takes(target: str, *ops: str) -> None:
    for op in ops:
        register_op_rule(op, target, accept_all)


def start() -> tuple[FunctionBuilder, Var]:
    b = FunctionBuilder()
    return b, b.input("x", X.shape)


def partitioned(b: FunctionBuilder, *results: Var, merge: bool = True, **options: Any) -> IRModule:
    """The module after the whole flow; every stage means the same, and so does what codegens make of it."""
    module = verify(IRModule({"main": b.function(*results)}))
    arrays = [np.random.default_rng(i).standard_normal(p.tensor_type.shape, dtype=np.float32) for i, p in enumerate(b.params)]  # fmt: skip
    after = AnnotateTarget(TARGETS)(module)
    after = verify(PartitionGraph(**options)(MergeCompilerRegions()(after) if merge else after))
    assert_same_meaning(module, after, arrays)
    compiled = RunCodegen({t: InterpretedBackend(t).codegen for t in TARGETS}, strict=True)(after)
    assert_same_meaning(module, verify(compiled), arrays)
    return after


def regions(module: IRModule) -> dict[str, Function]:
    """The regions, in order; each is named as it says."""
    found = {n: f for n, f in module.graph_functions().items() if "Codegen" in f.attrs}
    assert all(function.attrs["global_symbol"] == name for name, function in found.items())
    return found


def region(module: IRModule) -> Function:
    (found,) = regions(module).values()
    return found


def calls(module: IRModule) -> list[Call]:
    return [b.value for b in module.graph_functions()["main"].bindings if isinstance(b.value, Call)]


def test_multi_node_compiler() -> None:
    """Three chains of one target, put together by another operator."""
    takes("ccompiler", "add", "subtract", "multiply")
    b, x = start()
    weights = [b.input(f"w{i}", X.shape) for i in range(4)]
    chains = [b.op("multiply", b.op("subtract", b.op("add", x, weights[i]), weights[i + 1]), x) for i in range(3)]
    after = partitioned(b, b.op("concat", *chains, axis=0))
    assert called(after) == ["@default_ccompiler_main_0"] * 3 + ["concat"], "equal regions are one function"


def test_extern_ccompiler_single_op() -> None:
    takes("ccompiler", "add")
    b, x = start()
    after = partitioned(b, b.op("exp", b.op("add", x, b.input("y", X.shape))))
    assert called(after) == ["@default_ccompiler_main_0", "exp"]


def test_extern_ccompiler_default_ops() -> None:
    """What no target takes stays outside."""
    takes("ccompiler", "add", "subtract")
    b, x = start()
    result = b.op("concat", b.op("log", b.op("abs", b.op("add", x, x))), b.op("exp", x), axis=0)
    assert called(partitioned(b, result)) == ["@default_ccompiler_main_0", "abs", "log", "exp", "concat"]


def test_extern_compiler_sanitized_ops() -> None:
    """The name of a target need not be an identifier; names of functions are."""
    takes("test-target", "add")
    b, x = start()
    after = partitioned(b, b.op("add", x, x), module_name="my module")
    assert list(regions(after)) == ["my_module_test_target_main_0"]


def test_extern_ccompiler_multiple_functions() -> None:
    takes("ccompiler", "add")
    entries = {}
    for name in ("main", "subfunction"):
        b, x = start()
        entries[name] = b.function(b.op("exp", b.op("add", x, b.op("abs", x) if name == "main" else x)))
    module = verify(IRModule(entries))
    after = verify(PartitionGraph()(MergeCompilerRegions()(AnnotateTarget("ccompiler")(module))))
    assert list(regions(after)) == ["default_ccompiler_main_0", "default_ccompiler_subfunction_0"]


def test_extern_ccompiler() -> None:
    takes("ccompiler", "add")
    b, x = start()
    y = b.input("y", X.shape)
    z = b.op("add", b.op("add", x, x), y)
    assert [op_names(f) for f in regions(partitioned(b, z)).values()] == [("add", "add")]


def test_extern_dnnl() -> None:
    takes("dnnl", "nn.conv2d", "add")
    b = FunctionBuilder()
    data, weight = b.input("data", (1, 8, 6, 6)), b.input("weight", (8, 1, 3, 3))
    one = b.op("nn.conv2d", data, weight, strides=(1, 1), padding=(1, 1, 1, 1), groups=8)
    two = b.op("nn.conv2d", one, weight, strides=(1, 1), padding=(1, 1, 1, 1), groups=8)
    after = partitioned(b, b.op("add", one, two))
    assert [param.name for param in region(after).params] == ["data", "weight"]


def test_extern_dnnl_mobilenet() -> None:
    """A small network: convolution, norm, activation, pool, product, with all weights bound."""
    takes("dnnl", "nn.conv2d", "nn.relu", "add", "multiply", "mean", "matmul")
    b = FunctionBuilder()
    rng = np.random.default_rng(0)
    y = b.input("data", (1, 3, 8, 8))
    for channels in (4, 4):
        weight = rng.standard_normal((channels, y.tensor_type.shape[1], 3, 3), dtype=np.float32)
        y = b.op("nn.conv2d", y, weight, strides=(1, 1), padding=(1, 1, 1, 1))
        y = b.op("nn.relu", b.op("nn.batch_norm", y, *np.abs(rng.standard_normal((4, channels), dtype=np.float32))))
    y = b.op("reshape", b.op("mean", y, axes=(2, 3)), shape=(1, 4))
    result = b.op("nn.softmax", b.op("matmul", y, rng.standard_normal((4, 5), dtype=np.float32)), axis=1)
    module = SimplifyInference()(verify(IRModule({"main": b.function(result)})))
    after = verify(PartitionGraph()(MergeCompilerRegions()(AnnotateTarget("dnnl")(module))))
    assert_same_meaning(module, after, [rng.standard_normal((1, 3, 8, 8), dtype=np.float32)])
    assert called(after) == ["@default_dnnl_main_0", "reshape", "@default_dnnl_main_1", "nn.softmax"]
    assert all(len(function.params) == 1 for function in regions(after).values())


def test_function_lifting() -> None:
    takes("A", "nn.conv2d", "nn.relu")
    b = FunctionBuilder()
    data = b.input("data", (1, 3, 6, 6))
    conv = b.op("nn.conv2d", data, np.ones((2, 3, 3, 3), np.float32), strides=(1, 1), padding=(0,) * 4)
    result = b.op("nn.relu", b.op("abs", conv))
    assert called(partitioned(b, result)) == ["@default_A_main_0", "abs", "@default_A_main_1"]


def test_function_lifting_inline() -> None:
    """Bindings that rename values are no obstacle, and nothing of them is left."""
    takes("A", "nn.relu", "abs")
    b, x = start()
    assert called(partitioned(b, b.op("abs", b.bind(b.op("nn.relu", b.bind(x)))))) == ["@default_A_main_0"]


def test_constant_propagation() -> None:
    """Parameters that are bound before the partition are computed with before it."""
    takes("ccompiler", "add")
    b, x = start()
    ones = b.input("ones", X.shape)
    module = IRModule({"main": b.function(b.op("add", x, b.op("add", ones, np.ones(X.shape, np.float32))))})
    bound = FoldConstants()(BindParams("main", {"ones": np.ones(X.shape, np.float32)})(module))
    after = verify(PartitionGraph()(AnnotateTarget("ccompiler")(bound)))
    assert_same_meaning(bound, after, [X])
    (binding,) = region(after).bindings
    assert np.array_equal(binding.value.args[1].data, np.full(X.shape, 2, np.float32))


def test_multiple_outputs() -> None:
    takes("A", "nn.batch_norm", "nn.relu", "exp")
    b, x = start()
    relu = b.op("nn.relu", x)
    after = partitioned(b, b.op("tanh", b.op("exp", relu)), b.op("abs", relu))
    assert isinstance(region(after).result_type, TupleType)
    assert len(region(after).result_type.fields) == 2


def test_mixed_single_multiple_outputs() -> None:
    takes("A", "nn.relu", "exp", "add")
    b, x = start()
    relu = b.op("nn.relu", x)
    tanh = b.op("tanh", relu)
    after = partitioned(b, b.op("add", b.op("exp", relu), tanh))
    results = [function.result_type for function in regions(after).values()]
    assert [len(type_.fields) if isinstance(type_, TupleType) else 1 for type_ in results] == [2, 1]


def test_dnnl_fuse() -> None:
    """Composites in regions: a chain of them is one region, whose functions keep their attributes."""
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    table = [("dnnl.conv2d_bias_relu", is_op("nn.relu")(is_op("add")(conv, wildcard()))), ("dnnl.conv2d", conv)]
    b = FunctionBuilder()
    y = b.input("data", (1, 3, 6, 6))
    for channels in (4, 4):
        weight = np.ones((channels, y.tensor_type.shape[1], 3, 3), np.float32)
        conv_ = b.op("nn.conv2d", y, weight, strides=(1, 1), padding=(1, 1, 1, 1))
        y = b.op("nn.relu", b.op("add", conv_, np.ones((4, 1, 1), np.float32)))
    y = b.op("nn.conv2d", y, np.ones((2, 4, 1, 1), np.float32), strides=(1, 1), padding=(0,) * 4)
    module = verify(IRModule({"main": b.function(y)}))
    after = verify(PartitionGraph()(MergeCompilerRegions()(AnnotateTarget("dnnl")(MergeComposite(table)(module)))))
    assert_same_meaning(module, after, [np.ones((1, 3, 6, 6), np.float32)])
    composites = [after[binding.value.op_name].attrs for binding in region(after).bindings]
    assert [attrs["Composite"] for attrs in composites] == ["dnnl.conv2d_bias_relu"] * 2 + ["dnnl.conv2d"]
    assert composites[0]["PartitionedFromPattern"] == "nn.conv2d_add_nn.relu_"


def test_multiple_use_of_an_output() -> None:
    takes("A", "nn.relu", "abs")
    b, x = start()
    relu = b.op("nn.relu", x)
    after = partitioned(b, b.op("multiply", b.op("exp", relu), b.op("tanh", relu)), b.op("abs", relu))
    assert len(region(after).result_type.fields) == 2, "each output once, however often it is read"


def test_duplicate_outputs() -> None:
    takes("A", "abs")
    b, x = start()
    result = b.op("abs", x)
    after = partitioned(b, b.op("add", result, result), result)
    assert not isinstance(region(after).result_type, TupleType)


def test_duplicate_inputs_are_passed_once() -> None:
    takes("A", "add", "multiply", "abs")
    b, x = start()
    doubled = b.op("add", x, x)
    after = partitioned(b, b.op("multiply", doubled, b.op("exp", x)))
    assert [len(call.args) for call in calls(after) if call.op_name in after] == [2]


def test_duplicate_merge_and_tuplegetitem() -> None:
    takes("A", "split", "nn.relu")
    b, x = start()
    parts = b.op("split", x, axis=1, sections=(4, 6))
    left, again = b.get(parts, 0), b.get(parts, 0)
    after = partitioned(b, b.op("nn.relu", left), b.op("exp", again), b.op("tanh", b.get(parts, 1)))
    assert called(after) == ["@default_A_main_0", "exp", "tanh"]


def test_constant_tuples() -> None:
    """Constants among the operands of an operator of many are bound inside too."""
    takes("A", "concat")
    b, x = start()
    after = partitioned(b, b.op("concat", x, np.ones((1, 10), np.float32), np.zeros((2, 10), np.float32), axis=0))
    assert len(region(after).params) == 1
    assert sum(isinstance(arg, Constant) for arg in region(after).bindings[0].value.args) == 2


def test_flatten_tuple_output() -> None:
    takes("A", "split")
    b, x = start()
    parts = b.op("split", x, axis=1, sections=(4, 6))
    after = partitioned(b, b.op("exp", b.get(parts, 1)), b.op("tanh", b.get(parts, 0)), merge=False)
    assert isinstance(region(after).result_type, TupleType)
    assert len(region(after).bindings) == 3, "the split, and its two parts as results"


def test_tuple_output_exec() -> None:
    takes("A", "add", "subtract")
    b, x = start()
    y = b.input("y", X.shape)
    after = partitioned(b, b.op("add", x, y), b.op("subtract", b.op("add", x, y), y))
    assert called(after)[-1].startswith("@default_A_main")


def _hook(change: str) -> Any:
    """A target's optimization: relu becomes another operator in its regions."""

    def rewrite(_: Any, var: Var, value: Any) -> Any:
        is_relu = isinstance(value, Call) and value.op_name == "nn.relu"
        return (
            Call(get_op(change), value.args, {"dtype": "float64"} if change == "astype" else {}) if is_relu else value
        )

    def optimize(module: IRModule) -> IRModule:
        entries = module.entry_functions()
        assert entries, "regions are ordinary functions here"
        return module.with_functions({name: RewriteWith(rewrite).mutate(f) for name, f in entries.items()})

    return optimize


def _relu_then_exp(**options: Any) -> IRModule:
    takes("A", "nn.relu")
    takes("B", "abs")
    b, x = start()
    module = IRModule({"main": b.function(b.op("abs", b.op("nn.relu", x)))})
    return verify(PartitionGraph(**options)(AnnotateTarget(["A", "B"])(module)))


def test_extern_opt() -> None:
    after = _relu_then_exp(optimize={"A": _hook("tanh")})
    assert [op_names(function) for function in regions(after).values()] == [("tanh",), ("abs",)]
    assert [function.attrs["Codegen"] for function in regions(after).values()] == ["A", "B"]


@pytest.mark.parametrize("hook", [_hook("astype"), lambda module: module.no_such_attribute, lambda module: None])
def test_extern_opt_that_fails_changes_nothing(hook: Any) -> None:
    """A vendor's hook is contained, as its checks are, which in TVM it is not."""
    assert [op_names(f) for f in regions(_relu_then_exp(optimize={"A": hook})).values()] == [("nn.relu",), ("abs",)]


def test_preserve_type_import() -> None:
    """What the module carries beside its functions stays."""
    takes("A", "nn.relu")
    b, x = start()
    attached = InterpretedBackend("other").codegen([], {})
    module = IRModule({"main": b.function(b.op("nn.relu", x))}, {"metadata": {"a": "b"}, EXTERNAL_MODULES: (attached,)})
    after = PartitionGraph()(MergeCompilerRegions()(AnnotateTarget("A")(module)))
    assert dict(after.attrs) == dict(module.attrs)


@pytest.mark.parametrize(("bind", "params"), [(True, 1), (False, 2)])
def test_not_bind_constant(bind: bool, params: int) -> None:
    takes("A", "add")
    b, x = start()
    assert len(region(partitioned(b, b.op("add", x, X), bind_constants=bind)).params) == params


def test_equal_constants_are_one_argument_and_different_ones_two_regions() -> None:
    """Guards against #19801: regions that are equal but for their constants are two."""
    takes("A", "add")
    b, x = start()
    one, again, two = (np.full((10,), value, np.float32) for value in (1, 1, 2))
    results = [b.op("exp", b.op("add", x, value)) for value in (one, again, two)]
    assert len(regions(partitioned(b, *results))) == 2
    b, x = start()
    both = b.op("add", b.op("add", x, one), again)
    assert len(region(partitioned(b, both, bind_constants=False)).params) == 2


def test_same_output_region() -> None:
    """Two results of one region, both returned."""
    takes("A", "abs", "nn.relu")
    b, x = start()
    first = b.op("nn.relu", x)
    after = partitioned(b, first, b.op("abs", first))
    assert called(after) == ["@default_A_main_0"]


def test_different_output_region() -> None:
    """Two results of two regions that do not feed each other."""
    takes("A", "abs")
    takes("B", "nn.relu")
    b, x = start()
    after = partitioned(b, b.op("abs", x), b.op("nn.relu", x))
    assert called(after) == ["@default_A_main_0", "@default_B_main_0"]


def test_nothing_marked_is_no_change() -> None:
    b, x = start()
    module = IRModule({"main": b.function(b.op("abs", x))})
    assert PartitionGraph()(module) is module


SCENARIOS = {
    "PartitionGraph: multi_node_compiler": test_multi_node_compiler,
    "PartitionGraph: extern_ccompiler_single_op": test_extern_ccompiler_single_op,
    "PartitionGraph: extern_ccompiler_default_ops": test_extern_ccompiler_default_ops,
    "PartitionGraph: extern_compiler_sanitized_ops": test_extern_compiler_sanitized_ops,
    "PartitionGraph: extern_ccompiler_multiple_functions": test_extern_ccompiler_multiple_functions,
    "PartitionGraph: extern_ccompiler": test_extern_ccompiler,
    "PartitionGraph: extern_dnnl": test_extern_dnnl,
    "PartitionGraph: extern_dnnl_mobilenet": test_extern_dnnl_mobilenet,
    "PartitionGraph: function_lifting": test_function_lifting,
    "PartitionGraph: function_lifting_inline": test_function_lifting_inline,
    "PartitionGraph: constant_propagation": test_constant_propagation,
    "PartitionGraph: multiple_outputs": test_multiple_outputs,
    "PartitionGraph: mixed_single_multiple_outputs": test_mixed_single_multiple_outputs,
    "PartitionGraph: dnnl_fuse": test_dnnl_fuse,
    "PartitionGraph: multiple_use_of_an_output": test_multiple_use_of_an_output,
    "PartitionGraph: duplicate_outputs": test_duplicate_outputs,
    "PartitionGraph: duplicate_merge_and_tuplegetitem": test_duplicate_merge_and_tuplegetitem,
    "PartitionGraph: constant_tuples": test_constant_tuples,
    "PartitionGraph: flatten_tuple_output": test_flatten_tuple_output,
    "PartitionGraph: tuple_output_exec": test_tuple_output_exec,
    "PartitionGraph: extern_opt": test_extern_opt,
    "PartitionGraph: preserve_type_import": test_preserve_type_import,
    "PartitionGraph: not_bind_constant": test_not_bind_constant,
    "PartitionGraph: same_output_region": test_same_output_region,
    "PartitionGraph: different_output_region": test_different_output_region,
    "PartitionGraph: equal regions with different constants (#19801)": test_equal_constants_are_one_argument_and_different_ones_two_regions,
}
