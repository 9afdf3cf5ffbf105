"""Whole programs: products by cuBLAS, the rest by kernels of our own, in one memory; and what is said without a GPU."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import DeviceError
from kernelyard.ir import TensorType
from kernelyard.testing.offload_bench import module_of, values

from .conftest import compiled
from .test_tvm_scenarios import transposed

B, S, T, N = (symbol(name) for name in "bstn")
HEADS, WIDTH = 3, 8


def attention(b, q, k, v, mask):
    """Every size of the sequences is unknown: of queries, and of keys, as they grow in a decoder. The weights are a
    result too, so that it stays spelled out."""
    scores = b.op("multiply", b.op("matmul", q, transposed(b, k)), np.asarray(0.5, q.tensor_type.dtype))
    weights = b.op("nn.softmax", b.op("add", scores, mask), axis=3)
    return b.op("matmul", weights, v), weights


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_with_a_mask(dtype, products):
    shapes = [(B, HEADS, S, WIDTH), (B, HEADS, T, WIDTH), (B, HEADS, T, WIDTH), (S, T)]
    module = module_of(attention, *((shape, dtype) for shape in shapes))
    exe = compiled(module)
    patterns = [region.pattern for region in exe.report.regions if region.backend == "cublas"]
    assert sorted(patterns) == ["cublas.matmul", "cublas.matmul_transposed_residual"]
    assert {node.backend for node in exe.report.nodes} == {"cublas", "native-cuda"}
    products.right(exe, module, b=2, s=1, t=7)


def encoder(b, x):
    """A layer of a transformer: products with a bias, with gelu, and with what goes around them."""
    w = [values(shape, "float32", seed) for seed, shape in enumerate([(16, 16)] * 4 + [(16, 64), (64, 16)])]
    q, k, v = (b.op("add", b.op("matmul", x, w[i]), w[i][0]) for i in range(3))
    scores = b.op("nn.softmax", b.op("matmul", q, transposed(b, k)), axis=2)
    mixed = b.op("add", b.op("matmul", b.op("matmul", scores, v), w[3]), x)
    ones, zeros = np.ones(16, np.float32), np.zeros(16, np.float32)
    normed = b.op("nn.layer_norm", mixed, ones, zeros, axes=(2,), epsilon=1e-5)
    hidden = b.op("nn.gelu_tanh", b.op("add", b.op("matmul", normed, w[4]), w[4][0]))
    out = b.op("add", b.op("matmul", hidden, w[5]), w[5][0])
    return b.op("nn.layer_norm", b.op("add", out, normed), ones, zeros, axes=(2,), epsilon=1e-5)


def test_an_encoder_layer(products):
    module = module_of(encoder, ((B, S, 16), "float32"))
    exe = compiled(module)
    patterns = sorted(r.pattern.removeprefix("cublas.") for r in exe.report.regions if r.backend == "cublas")
    assert patterns == sorted(
        ["matmul_bias"] * 3
        + ["matmul_transposed", "matmul", "matmul_residual", "matmul_bias_gelu", "matmul_bias_residual"]
    )
    products.right(exe, module, b=2, s=5)


def test_branches_run_products_too(products):
    """Values go from one block to another in the device's memory."""
    from kernelyard.ir import FunctionBuilder, IRModule

    weights = [values((4, 4), "float32", seed) for seed in range(2)]
    functions = {}
    for name, weight in zip(("then", "otherwise"), weights, strict=True):
        b = FunctionBuilder()
        functions[name] = b.function(b.op("matmul", b.input("x", (N, 4)), weight), attrs={"private": True})
    b = FunctionBuilder()
    x, flag = b.input("x", (N, 4)), b.input("flag", (), "bool")
    functions["main"] = b.function(b.if_(flag, "then", "otherwise", [x], TensorType((N, 4), "float32")))
    exe = compiled(IRModule(functions))
    assert {region.pattern for region in exe.report.regions} == {"cublas.matmul"}
    machine = ky.VirtualMachine(exe, ky.cuda(products.emulator.index))
    x = values((3, 4), "float32")
    for flag, weight in ((True, weights[0]), (False, weights[1])):
        np.testing.assert_allclose(machine["main"](x, np.array(flag)).numpy(), x @ weight, rtol=1e-5, atol=1e-6)


NO_DRIVER = """
import sys
sys.modules["cuda"] = None  # as on a machine without cuda-bindings
import numpy as np
import kernelyard as ky
import kernelyard_cublas, kernelyard_cublas.runtime
exe = ky.load(sys.argv[1])
try:
    exe(np.zeros((2, 16, 16), np.float32))
except ky.errors.DeviceError as error:
    print(error)
"""


def test_without_a_driver_one_error_says_what_is_missing(tmp_path):
    exe = compiled(module_of(encoder, ((B, S, 16), "float32")), "sm_90")
    exe.save(tmp_path / "m.kyar")
    run = [sys.executable, "-c", NO_DRIVER, str(tmp_path / "m.kyar")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "CUDA devices are unavailable" in done.stdout
    assert "pip install" in done.stdout
    with pytest.raises(DeviceError):
        ky.VirtualMachine(exe, ky.cpu())


def test_the_command_line_explains_for_cuda(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("kernelyard_onnx")
    float32 = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", float32, ["n", 4])],
        [onnx.helper.make_tensor_value_info("y", float32, ["n", 3])],
        [onnx.numpy_helper.from_array(values(shape, "float32"), name) for name, shape in (("w", (4, 3)), ("b", (3,)))],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    command = [
        sys.executable,
        "-m",
        "kernelyard",
        "explain",
        str(tmp_path / "m.onnx"),
        "--target",
        "cuda",
        "--backends",
        "cublas",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cublas.matmul_bias" in done.stdout
