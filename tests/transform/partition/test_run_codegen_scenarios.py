"""RunCodegen: the scenarios of TVM's test_transform_codegen_pass.py, by their names.

The library is dnnl, and "tvm" is the target's own code generator. As there, each test first asserts that the library
has its share, and then that the result is right, also after the artifact was saved and loaded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend, called

import kernelyard as ky
from kernelyard import dims
from kernelyard.errors import IRError
from kernelyard.ir import Call, FunctionBuilder, IRModule, Var
from kernelyard.ir.verify import verify
from kernelyard.patterns import is_op, wildcard
from kernelyard.placement.partition import partition
from kernelyard.testing.reference import assert_same_meaning, evaluate
from kernelyard.transform.lowering.legalize_ops import LegalizeOps
from kernelyard.transform.partition.fuse_ops_by_pattern import FuseOpsByPattern
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES, RunCodegen

pytest.importorskip("kernelyard_dnnl")

X = np.random.default_rng(0).standard_normal((2, 4, 8, 8), dtype=np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((4, 4, 3, 3), dtype=np.float32)


def conv_relu(b: FunctionBuilder, x: Var) -> Var:
    return b.op("nn.relu", b.op("nn.conv2d", x, WEIGHT, strides=(1, 1), padding=(1, 1, 1, 1)))


def check_roundtrip(module: IRModule, path: Path, x: np.ndarray, library: float) -> None:
    """Compile, save, load and run; `library` is the least share of the operators that dnnl must have."""
    exe = ky.compile(module, backends=["dnnl"])
    assert exe.report.coverage["dnnl"]["ops_fraction"] >= library
    exe.save(path / "m.kyar")
    expected = evaluate(module, [x])
    for runnable in (exe, ky.load(path / "m.kyar")):
        results = runnable(x)
        for result, value in zip(results if isinstance(results, tuple) else (results,), expected, strict=True):
            np.testing.assert_allclose(result.numpy(), value, rtol=1e-4, atol=1e-4)


def test_tensorrt_only(tmp_path):
    """Everything runs in the library."""
    b = FunctionBuilder()
    module = IRModule({"main": b.function(conv_relu(b, conv_relu(b, b.input("x", X.shape))))})
    check_roundtrip(module, tmp_path, X, library=1.0)


def test_mix_use_tensorrt_and_tvm(tmp_path):
    """What the library does not have is compiled by the target's own generator."""
    b = FunctionBuilder()
    y = b.op("sin", conv_relu(b, b.input("x", X.shape)))
    module = IRModule({"main": b.function(conv_relu(b, b.op("floor", y)), y)})
    check_roundtrip(module, tmp_path, X, library=0.5)


def interpreted(module: IRModule) -> IRModule:
    """The module with its convolutions in an interpreted library."""
    acme = InterpretedBackend("acme", patterns=FuseOpsByPattern([CONV_RELU]).patterns, merge_composites=False)
    return verify(RunCodegen({"acme": acme.codegen}, strict=True)(partition(module, [acme])))


CONV_RELU = ("acme.conv2d_relu", is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard())))


def test_multiple_calls_same_extern():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(conv_relu(b, conv_relu(b, b.input("x", X.shape))))})
    after = interpreted(module)
    assert called(after) == ["extern acme_0", "extern acme_0"]
    (attached,) = after.attrs[EXTERNAL_MODULES]
    assert attached.symbols() == ("acme_0",)
    assert_same_meaning(module, after, [X])


def test_default_entry_func():
    """Guards against a defect of TVM: entry functions need not be called main."""
    b = FunctionBuilder()
    after = interpreted(IRModule({"func": b.function(conv_relu(b, b.input("x", X.shape)))}))
    assert called(after, "func") == ["extern acme_0"]


@pytest.mark.parametrize("entry_functions", [None, ["main"]])
def test_regions_inside_branches(entry_functions):
    """A branch belongs to the function that takes it: its regions are compiled along."""
    functions = {}
    for name, op in (("then", "exp"), ("otherwise", "tanh")):
        b = FunctionBuilder()
        functions[name] = b.function(b.op(op, conv_relu(b, b.input("x", X.shape))), attrs={"private": True})
    b = FunctionBuilder()
    x, flag = b.input("x", X.shape), b.input("flag", (), "bool")
    chosen = b.if_(flag, "then", "otherwise", [conv_relu(b, x)], x.type)
    module = verify(IRModule({"main": b.function(chosen), **functions}))
    acme = InterpretedBackend("acme")
    pattern = ("acme.conv_relu", is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard())))
    placed = FuseOpsByPattern([pattern], annotate_codegen=True, entry_functions=entry_functions)(module)
    after = verify(RunCodegen({"acme": acme.codegen}, entry_functions=entry_functions, strict=True)(placed))
    assert called(after) == ["extern acme_0", "if"]
    assert called(after, "then") == ["extern acme_0", "exp"]
    assert called(after, "otherwise") == ["extern acme_0", "tanh"]
    assert set(after.functions) == {"main", "then", "otherwise"}
    for choice in (True, False):
        assert_same_meaning(module, after, [X, np.array(choice)])


def test_a_name_that_no_function_has_is_refused():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(conv_relu(b, b.input("x", X.shape)))})
    for pass_ in (RunCodegen({}, entry_functions=["mian"]), FuseOpsByPattern([], entry_functions=["mian"])):
        with pytest.raises(IRError, match="@mian is no entry function"):
            pass_(module)


def test_order_of_backends_is_that_of_first_call():
    """Guards against a defect of TVM: the order of backends changed from run to run."""
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("tanh", b.op("exp", b.op("sin", b.input("x", (2,))))))})
    backends = [InterpretedBackend(name, [op]) for name, op in (("c", "tanh"), ("a", "exp"), ("b", "sin"))]
    placed = partition(module, backends)
    for _ in range(3):
        after = RunCodegen({each.name: each.codegen for each in backends})(placed)
        assert [attached.symbols()[0] for attached in after.attrs[EXTERNAL_MODULES]] == ["b_0", "a_0", "c_0"]


def test_dynamic_shape(tmp_path):
    n = dims.symbol("n")
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (n, 8)), np.random.default_rng(2).standard_normal((8, 4), dtype=np.float32))
    module = IRModule({"main": b.function(b.op("nn.relu", product))})
    exe = ky.compile(module, backends=["dnnl"])
    assert exe.report.coverage["dnnl"]["ops_fraction"] == 1
    exe.save(tmp_path / "m.kyar")
    for runnable in (exe, ky.load(tmp_path / "m.kyar")):
        for rows in (1, 5):
            x = np.random.default_rng(rows).standard_normal((rows, 8), dtype=np.float32)
            np.testing.assert_allclose(runnable(x).numpy(), evaluate(module, [x])[0], rtol=1e-4, atol=1e-5)


def test_no_op_for_call_to_tir():
    b = FunctionBuilder()
    module = LegalizeOps()(IRModule({"main": b.function(b.op("nn.relu", b.input("x", X.shape)))}))
    assert isinstance(module["main"].bindings[0].value, Call)
    assert RunCodegen({})(module) is module


SCENARIOS = {
    "RunCodegen: regions inside branches": test_regions_inside_branches,
    "RunCodegen: tensorrt_only": test_tensorrt_only,
    "RunCodegen: mix_use_tensorrt_and_tvm": test_mix_use_tensorrt_and_tvm,
    "RunCodegen: multiple_calls_same_extern": test_multiple_calls_same_extern,
    "RunCodegen: default_entry_func": test_default_entry_func,
    "RunCodegen: dynamic_shape": test_dynamic_shape,
    "RunCodegen: no_op_for_call_to_tir": test_no_op_for_call_to_tir,
    "RunCodegen: order of backends (defect of TVM)": test_order_of_backends_is_that_of_first_call,
}
