"""The Relay-era flow with a real library: the scenarios of test_json_runtime.py and test_external_codegen.py, by name.

Patterns and codegen are dnnl's own. What is left outside is run by the reference interpreter. Those with C source
(`test_extern_gcc` and the like) are in tests/driver/test_relay_c_source_scenarios.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.ir.verify import verify
from kernelyard.patterns.op_rules import accept_all, register_op_rule, unregister_op_rules
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.target import Target
from kernelyard.testing.reference import evaluate
from kernelyard.transform.interprocedural.bind_params import BindParams
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES, RunCodegen
from kernelyard.transform.pass_infra.pass_base import Sequential
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_tvm_compat.annotate_target import AnnotateTarget
from kernelyard_tvm_compat.merge_compiler_regions import MergeCompilerRegions
from kernelyard_tvm_compat.merge_composite import MergeComposite
from kernelyard_tvm_compat.partition_graph import PartitionGraph

pytest.importorskip("kernelyard_dnnl")


@pytest.fixture(autouse=True)
def _clean_rules() -> Iterator[None]:
    yield
    unregister_op_rules("ccompiler")


def flow() -> Sequential:
    dnnl = get_manager().get("dnnl", "backend")
    passes = [
        MergeComposite(dnnl.patterns(Target("cpu"))),
        AnnotateTarget("dnnl"),
        MergeCompilerRegions(),
        PartitionGraph(),
    ]
    return Sequential([*passes, RunCodegen({"dnnl": dnnl.codegen}, strict=True)], "partition_for_dnnl")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def check(b: FunctionBuilder, *results: Var, externs: int = 1, others: tuple[str, ...] = ()) -> IRModule:
    """Everything but `others` runs in dnnl, in so many regions, and computes the same."""
    module = verify(IRModule({"main": b.function(*results)}))
    compiled = verify(flow()(get_pipeline("simplify")(module)))
    found = called(compiled)
    assert sum(name.startswith("extern default_dnnl_main") for name in found) == externs
    assert tuple(name for name in found if not name.startswith("extern")) == others
    shapes = [[dims.evaluate(dim, {"n": 3}) for dim in param.tensor_type.shape] for param in b.params]
    arrays = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    for one, other in zip(evaluate(compiled, arrays), evaluate(module, arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    return compiled


def conv(b: FunctionBuilder, x: Var, weight: Var | np.ndarray, **attrs: object) -> Var:
    return b.op("nn.conv2d", x, weight, **{"strides": (1, 1), "padding": (1, 1, 1, 1), **attrs})


# --- test_json_runtime.py ---------------------------------------------------------------------------------------------
def test_conv2d() -> None:
    b = FunctionBuilder()
    data, weight = b.input("data", (1, 32, 14, 14)), b.input("weight", (32, 1, 3, 3))
    first = conv(b, data, weight, groups=32)
    check(b, b.op("add", first, conv(b, first, weight, groups=32)))


@pytest.mark.parametrize("op", ["add", "multiply"])
def test_add_and_multiply(op: str) -> None:
    b = FunctionBuilder()
    check(b, b.op(op, b.input("x", (10, 10)), b.input("y", (10, 10))))


def test_relu() -> None:
    b = FunctionBuilder()
    check(b, b.op("nn.relu", b.input("x", (1, 32, 14, 14))))


def test_dense() -> None:
    b = FunctionBuilder()
    weight = b.op("permute_dims", b.input("w", (16, 32)), axes=(1, 0))
    check(b, b.op("matmul", b.input("x", (4, 32)), weight))


def test_bn() -> None:
    b = FunctionBuilder()
    x = conv(b, b.input("x", (1, 4, 6, 6)), numbers(4, 4, 3, 3))
    vectors = [np.abs(numbers(4, seed=i)) for i in range(4)]
    check(b, b.op("nn.batch_norm", x, *vectors))


def test_multiple_ops() -> None:
    b = FunctionBuilder()
    x, w1, w2 = b.input("x", (1, 8, 6, 6)), numbers(8, 8, 3, 3), numbers(8, 8, 3, 3, seed=1)
    check(b, b.op("nn.relu", conv(b, b.op("nn.relu", conv(b, x, w1)), w2)))


def test_composite() -> None:
    """Convolution, bias and activation are one composite, and it is what the library gets."""
    b = FunctionBuilder()
    product = conv(b, b.input("x", (1, 8, 6, 6)), numbers(8, 8, 3, 3))
    compiled = check(b, b.op("nn.relu", b.op("add", product, numbers(8, 1, 1))))
    (attached,) = compiled.attrs[EXTERNAL_MODULES]
    assert "relu" in attached.inspect()


def test_constant() -> None:
    """All weights are bound; they are handed over with the module, by content."""
    b = FunctionBuilder()
    product = conv(b, b.input("x", (1, 8, 6, 6)), numbers(8, 8, 3, 3))
    compiled = check(b, b.op("nn.relu", b.op("add", product, numbers(8, 1, 1))))
    (attached,) = compiled.attrs[EXTERNAL_MODULES]
    assert len(attached.constants()) == 2


def test_partial_constant() -> None:
    b = FunctionBuilder()
    x, y = b.input("x", (10, 10)), b.input("y", (10, 10))
    total = b.op("add", b.op("add", b.op("add", x, numbers(10, 10)), y), numbers(10, 10, seed=1))
    compiled = check(b, total)
    assert len(compiled["main"].bindings[0].value.args) == 3, "the symbol, x and y"


# --- test_external_codegen.py -----------------------------------------------------------------------------------------
def test_extern_codegen_multi_node() -> None:
    b = FunctionBuilder()
    x, w = b.input("x", (4, 8)), b.input("w", (8, 8))
    check(b, b.op("nn.relu", b.op("matmul", b.op("matmul", x, w), w)), b.op("floor", x), others=("floor",))


def test_extern_codegen_single_op() -> None:
    b = FunctionBuilder()
    check(b, b.op("nn.relu", b.input("x", (8, 8))))


def test_extern_codegen_single_op_int() -> None:
    """Integers are declined by the library's checks, and run outside."""
    b = FunctionBuilder()
    x, y = b.input("x", (8, 8), "int64"), b.input("y", (8, 8), "int64")
    module = IRModule({"main": b.function(b.op("add", x, y))})
    assert flow()(module) is module


def test_extern_codegen_int_of_another_library() -> None:
    register_op_rule("add", "ccompiler", accept_all)
    b = FunctionBuilder()
    x, y = b.input("x", (8, 8), "int32"), b.input("y", (8, 8), "int32")
    module = IRModule({"main": b.function(b.op("add", x, y))})
    placed = PartitionGraph()(AnnotateTarget("ccompiler")(module))
    compiled = RunCodegen({"ccompiler": InterpretedBackend("ccompiler").codegen}, strict=True)(placed)
    a = np.arange(64, dtype=np.int32).reshape(8, 8)
    assert np.array_equal(evaluate(compiled, [a, a])[0], a + a)


def test_constants() -> None:
    b = FunctionBuilder()
    x = b.input("x", (8, 8))
    result = b.op("add", b.op("add", x, numbers(8, 8)), x)
    check(b, result)


def test_dnnl_padding() -> None:
    """Other padding at the ends than at the begins."""
    b = FunctionBuilder()
    check(b, conv(b, b.input("x", (1, 3, 8, 8)), numbers(4, 3, 3, 3), padding=(0, 1, 2, 1), strides=(2, 2)))


def test_dnnl_const() -> None:
    b = FunctionBuilder()
    x, w, bias = b.input("x", (1, 3, 8, 8)), b.input("w", (4, 3, 3, 3)), numbers(4, 1, 1)
    check(b, b.op("add", conv(b, x, w), bias))


def test_load_params_with_constants_in_ext_codegen() -> None:
    """Some weights are constants of the model, others are bound later; both reach the library."""
    b = FunctionBuilder()
    x, w = b.input("x", (2, 4)), b.input("w", (4, 3))
    module = IRModule({"main": b.function(b.op("add", b.op("matmul", x, w), numbers(3)))})
    compiled = verify(flow()(BindParams("main", {"w": numbers(4, 3)})(module)))
    assert called(compiled) == ["extern default_dnnl_main_0"]
    a = numbers(2, 4)
    np.testing.assert_allclose(evaluate(compiled, [a])[0], a @ numbers(4, 3) + numbers(3), rtol=1e-5, atol=1e-5)
    (attached,) = compiled.attrs[EXTERNAL_MODULES]
    assert len(attached.constants()) == 2


def test_symbolic_batch() -> None:
    b = FunctionBuilder()
    x = b.input("x", (dims.symbol("n"), 8))
    check(b, b.op("nn.relu", b.op("matmul", x, numbers(8, 4))))


SCENARIOS = {
    "json_runtime: conv2d": test_conv2d,
    "json_runtime: add": test_add_and_multiply,
    "json_runtime: multiply": test_add_and_multiply,
    "json_runtime: relu": test_relu,
    "json_runtime: dense": test_dense,
    "json_runtime: bn": test_bn,
    "json_runtime: multiple_ops": test_multiple_ops,
    "json_runtime: composite": test_composite,
    "json_runtime: constant": test_constant,
    "json_runtime: partial_constant": test_partial_constant,
    "external_codegen: extern_codegen_multi_node": test_extern_codegen_multi_node,
    "external_codegen: extern_codegen_single_op": test_extern_codegen_single_op,
    "external_codegen: extern_codegen_single_op_int": test_extern_codegen_single_op_int,
    "external_codegen: constants": test_constants,
    "external_codegen: dnnl_padding": test_dnnl_padding,
    "external_codegen: dnnl_const": test_dnnl_const,
    "external_codegen: load_params_with_constants_in_ext_codegen": test_load_params_with_constants_in_ext_codegen,
}
