"""Rules and patterns that a script registers: oneDNN runs what they accept, by itself or in groups."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import transform
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ops.samples import floats
from kernelyard.patterns import (
    accept_all,
    is_op,
    register_op_rule,
    register_patterns,
    unregister_op_rules,
    unregister_patterns,
    wildcard,
)
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.transform import RunCodegen, Sequential
from kernelyard_dnnl.patterns import fusion_patterns

RULED = ("nn.conv2d", "matmul", "nn.relu", "add", "subtract", "multiply", "tanh")
OWN = [pattern.name for pattern in fusion_patterns()]
X = floats(1, 3, 8, 8)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    unregister_op_rules("dnnl")
    unregister_patterns("dnnl")


def small(*shape: int, seed: int = 0) -> np.ndarray:
    return floats(*shape, low=-0.2, high=0.2, seed=seed)


def conv_relu(with_bias: bool):
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    return is_op("nn.relu")(is_op("add")(conv, wildcard()) if with_bias else conv)


def register_rules() -> None:
    for op in RULED:
        register_op_rule(op, "dnnl", accept_all)


def table():
    return [("dnnl.conv2d_bias_relu", conv_relu(True)), ("dnnl.conv2d_relu", conv_relu(False))]


def network() -> IRModule:
    """Two convolutions with relu, one of them with a bias, and operators that stand alone."""
    b = FunctionBuilder()
    y = b.op("add", b.op("nn.conv2d", b.input("x", X.shape), small(4, 3, 3, 3)), small(4, 1, 1, seed=1))
    y = b.op("nn.relu", b.op("nn.conv2d", b.op("nn.relu", y), small(4, 4, 3, 3, seed=2)))
    bounded = b.op("tanh", y)
    total = b.op("subtract", bounded, b.op("multiply", bounded, y))
    return IRModule({"main": b.function(b.op("matmul", total, small(4, 5, seed=3)))})


def check_result(exe: ky.Executable) -> None:
    (expected,) = evaluate(network(), [X])
    assert np.any(expected)
    assert_allclose(exe(X), expected)
    assert {module.kind for module in exe.modules} == {"dnnl"}


def patterns_used(exe: ky.Executable) -> list[str]:
    return sorted(node.pattern for node in exe.report.nodes if node.backend == "dnnl")


def test_rules_alone() -> None:
    register_rules()
    exe = ky.compile(network(), backends=["dnnl"], exclude_patterns=OWN, strict=True)
    check_result(exe)
    used = ["nn.conv2d", "nn.conv2d", "add", "nn.relu", "nn.relu", "tanh", "multiply", "subtract", "matmul"]
    assert patterns_used(exe) == sorted(f"dnnl.rule.{op}" for op in used)


def test_patterns_alone() -> None:
    register_patterns(table())
    exe = ky.compile(network(), backends=["dnnl"], exclude_patterns=OWN, strict=True)
    assert set(patterns_used(exe)) == {"dnnl.conv2d_bias_relu", "dnnl.conv2d_relu"}
    assert_allclose(exe(X), evaluate(network(), [X])[0])


def test_both_at_once() -> None:
    register_rules()
    register_patterns(table())
    exe = ky.compile(network(), backends=["dnnl"], exclude_patterns=OWN, strict=True)
    check_result(exe)
    rules = {f"dnnl.rule.{op}" for op in ("tanh", "multiply", "subtract", "matmul")}
    assert set(patterns_used(exe)) == {"dnnl.conv2d_bias_relu", "dnnl.conv2d_relu", *rules}


def test_a_script_comes_before_the_backends_own() -> None:
    register_patterns(table())
    placed = ky.partition_for_dnnl(network())
    names = {f.attrs["Composite"] for f in placed.graph_functions().values() if "Composite" in f.attrs}
    assert {"dnnl.conv2d_bias_relu", "dnnl.conv2d_relu"} < names
    assert "dnnl.conv2d" not in names
    check_result(ky.compile(RunCodegen()(placed), backends=[]))


def test_marks_of_rules_run_in_relays_flow() -> None:
    pytest.importorskip("kernelyard_tvm_compat")
    register_rules()
    flow = [transform.MergeComposite(table()), transform.AnnotateTarget("dnnl"), transform.MergeCompilerRegions()]
    placed = Sequential([*flow, transform.PartitionGraph(), RunCodegen(strict=True)], "flow")(network())
    check_result(ky.compile(placed, backends=[]))


def test_a_rule_for_what_onednn_has_not_breaks_its_word() -> None:
    register_op_rule("cumsum", "dnnl", accept_all)
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("cumsum", b.input("x", (3,)), axis=0))})
    exe = ky.compile(module, backends=["dnnl"])
    (violation,) = exe.report.violations
    assert "operator by itself" in violation.message
    assert exe(np.float32([1, 2, 3])).numpy().tolist() == [1, 3, 6]


def test_operators_by_themselves_in_c() -> None:
    register_rules()
    options = {"dnnl": {"codegen": "c"}}
    exe = ky.compile(network(), backends=["dnnl"], options=options, exclude_patterns=OWN, strict=True)
    assert {module.kind for module in exe.modules} == {"c_source"}
    assert_allclose(exe(X), evaluate(network(), [X])[0])
