"""Whole programs of TVM's documents, compiled and run: a perceptron on CUDA, samplers, C that calls a library, an ARM CPU."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_library import Model
from interpreted_backend import InterpretedBackend

import kernelyard as ky
from kernelyard import nn, transform
from kernelyard.codegen.c_source_codegen import CSourceCodegen
from kernelyard.codegen.json_serializer import JSONSerializer, KernelNode
from kernelyard.errors import DeviceError, ToolchainError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.ops.samples import floats
from kernelyard.patterns import FusionPattern, is_op
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.runtime.abi.native_unit import Header
from kernelyard.runtime.jit import c_compiler
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard_native_cpu.runtime import NativeCpuModule


@pytest.fixture
def cuda() -> ky.Device:
    pytest.importorskip("kernelyard_native_cuda", reason="kernelyard-native-cuda is not installed")
    device = ky.cuda("emulator")
    try:
        device.require()
    except DeviceError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    return device


# --- TVM's way of compiling for CUDA ----------------------------------------------------------------------------------
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 128)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        return self.fc2(self.relu(self.fc1(x)))


def perceptron() -> tuple[IRModule, list[np.ndarray]]:
    """The module, and its feeds: pictures and weights."""
    mod, params = MLP().export({"forward": {"x": nn.spec.Tensor(("n", 784), "float32")}})[:2]
    rng = np.random.default_rng(0)
    weights = [rng.uniform(-0.05, 0.05, (128, 784)), rng.uniform(-1, 1, 128), rng.uniform(-0.1, 0.1, (10, 128))]
    feeds = [rng.random((3, 784)), *weights, rng.uniform(-1, 1, 10)]
    assert [*params] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    return mod, [each.astype(np.float32) for each in feeds]


def run_and_check(ex: ky.Executable, device: ky.Device, feeds: Sequence[np.ndarray]) -> None:
    vm = ky.VirtualMachine(ex, device)
    x, w1, b1, w2, b2 = feeds
    assert_allclose(vm["forward"](*feeds), np.maximum(x @ w1.T + b1, 0) @ w2.T + b2)


def test_compile_for_cuda(cuda):
    mod, feeds = perceptron()
    ex = ky.compile(mod, target="cuda", backends=[])
    assert {module.kind for module in ex.modules} == {"native-cuda"}
    run_and_check(ex, cuda, feeds)


def test_path_a_runs_the_default_pipeline_first(cuda):
    mod, feeds = perceptron()
    target = ky.Target("cuda")
    mod = ky.get_default_pipeline(target)(mod)
    ex = ky.compile(mod, target=target, backends=[])
    assert {module.kind for module in ex.modules} == {"native-cuda"}
    run_and_check(ex, cuda, feeds)


def test_path_b_has_matmuls_by_cublas(cuda):
    pytest.importorskip("kernelyard_cublas", reason="kernelyard-cublas is not installed")
    mod, feeds = perceptron()
    target = ky.Target("cuda")
    mod = ky.partition_for_cublas(mod, bind_constants=False)
    mod = transform.RunCodegen()(mod)
    mod = ky.get_default_pipeline(target)(mod)
    ex = ky.compile(mod, target=target, backends=[])
    assert "cublas" in {module.kind for module in ex.modules}
    run_and_check(ex, cuda, feeds)


def test_a_sequence_of_matmuls_is_one_function_of_cublas(cuda):
    backend = pytest.importorskip("kernelyard_cublas.backend", reason="kernelyard-cublas is not installed")
    mod, feeds = perceptron()
    patterns = backend.CublasBackend().patterns(ky.Target("cuda"))
    mod = transform.Sequential(
        [
            transform.get_pipeline("simplify"),
            transform.FuseOpsByPattern(patterns, annotate_codegen=False),
            transform.MergeCompositeFunctions(),
        ],
        "cublas",
    )(mod)
    (region,) = [f for f in mod.graph_functions().values() if "Codegen" in f.attrs]
    assert len(region.bindings) == 2
    ex = ky.compile(transform.RunCodegen()(mod), target="cuda", backends=[])
    assert {module.kind for module in ex.modules} == {"cublas"}
    run_and_check(ex, cuda, feeds)


# --- DispatchSampling and DispatchSortScan ----------------------------------------------------------------------------
class Sampling(nn.Module):
    def forward(self, prob, uniform):
        values, places = nn.op.topk(prob, 7, axis=1)
        sums, products = nn.op.cumsum(prob, axis=1), nn.op.cumprod(prob + 1.0, axis=1)
        return (
            nn.op.multinomial_from_uniform(prob, uniform),
            values,
            places,
            nn.op.argsort(prob, axis=1),
            sums,
            products,
        )


def test_samples_sorts_and_scans_are_functions_of_the_gpu(cuda):
    spec = {"forward": {"prob": nn.spec.Tensor([2, 300]), "uniform": nn.spec.Tensor([2, 1])}}
    ex = ky.compile(nn.ModuleSpec(Sampling(), spec), target="cuda", backends=[])
    assert {module.kind for module in ex.modules} == {"native-cuda"}
    prob = np.random.default_rng(0).dirichlet(np.ones(300), 2).astype(np.float32)
    uniform = np.array([[0.3], [0.8]], np.float32)
    order = np.argsort(-prob, 1, kind="stable")[:, :7]
    wanted = [
        (np.cumsum(prob, 1) <= uniform).sum(1, keepdims=True),
        *(np.take_along_axis(prob, order, 1), order, np.argsort(prob, 1, kind="stable")),
        *(np.cumsum(prob, 1), np.cumprod(prob + 1, 1)),
    ]
    for found, right in zip(ky.VirtualMachine(ex, cuda)["forward"](prob, uniform), wanted, strict=True):
        np.testing.assert_allclose(found.numpy(), right, rtol=1e-5)


# --- External modules in CUDA C++ -------------------------------------------------------------------------------------
MY_FUNC = """
extern "C" __global__ void my_func(const float* a, const float* b, float* c, long long X, long long Y, long long,
                                   long long, long long Z, long long, long long, long long, long long, long long N) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long n = i % N, z = i / N % Z, y = i / N / Z % Y, x = i / N / Z / Y;
  if (x < X) c[i] = a[x * Y + y] + b[(y * Z + z) * 5 + n % 5];
}
"""


def shape_dtype_inference(a, b):
    x, y, _ = a.shape
    _, z, _ = b.shape
    return nn.Tensor.placeholder((x, y, z, 9), dtype="float32")


class MyModel(nn.Module):
    def __init__(self, extern: nn.ExternModule) -> None:
        self.extern = extern

    def forward(self, a, b):
        return self.extern["my_func"](a, b) * 2.0


def test_a_source_module_of_cuda(cuda):
    pytest.importorskip("kernelyard_cuda", reason="kernelyard-cuda is not installed")
    spec = {"forward": {"a": nn.spec.Tensor([2, 3, 1]), "b": nn.spec.Tensor([3, 4, 5])}}
    extern = nn.SourceModule({"my_func": shape_dtype_inference}, MY_FUNC, "cu", arch="sm_90")
    try:
        ex = ky.compile(nn.ModuleSpec(MyModel(extern), spec, allow_extern=True), target="cuda", backends=[])
    except ToolchainError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    a, b = floats(2, 3, 1), floats(3, 4, 5, seed=1)
    found = ky.VirtualMachine(ex, cuda)["forward"](a, b)
    np.testing.assert_allclose(found.numpy(), 2 * (a[:, :, None, :] + b[None][..., np.arange(9) % 5]), rtol=1e-6)


# --- C that calls the vendor's functions ------------------------------------------------------------------------------
# Of the vendor, with the parameters that TVM's functions have: batch, channels, height, width, channels of the result,
# groups, padding, the filter's height and width, strides.
DNNL_KERNEL = """
#pragma once
#include <cstdint>
namespace tvm { namespace runtime { namespace contrib {
static void dnnl_conv2d(float* data, float* weights, float* out, int N, int C, int H, int W, int O, int, int PH, int PW,
                        int KH, int KW, int SH, int SW) {
  const int OH = (H + 2 * PH - KH) / SH + 1, OW = (W + 2 * PW - KW) / SW + 1;
  for (int n = 0; n < N; ++n) for (int o = 0; o < O; ++o) for (int y = 0; y < OH; ++y) for (int x = 0; x < OW; ++x) {
    float sum = 0;
    for (int c = 0; c < C; ++c) for (int i = 0; i < KH; ++i) for (int j = 0; j < KW; ++j) {
      const int row = y * SH + i - PH, column = x * SW + j - PW;
      if (row >= 0 && row < H && column >= 0 && column < W)
        sum += data[((n * C + c) * H + row) * W + column] * weights[((o * C + c) * KH + i) * KW + j];
    }
    out[((n * O + o) * OH + y) * OW + x] = sum;
  }
}
static void dnnl_add(float* a, float* b, float* out, int N, int C, int H, int W) {
  for (int i = 0; i < N * C * H * W; ++i) out[i] = a[i] + b[i];
}
static void dnnl_relu(float* a, float* out, int N, int C, int H, int W) {
  for (int i = 0; i < N * C * H * W; ++i) out[i] = a[i] > 0 ? a[i] : 0;
}
} } }
"""
DNNL_0 = """
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/container.h>
#include <tvm/runtime/packed_func.h>
#include <dlpack/dlpack.h>
#include <dnnl/dnnl_kernel.h>
using namespace tvm::runtime;
using namespace tvm::runtime::contrib;

// Execute the conv2d->add->relu graph with DNNL.
extern "C" void dnnl_0_(float* dnnl_0_i0, float* dnnl_0_i1,
                        float* dnnl_0_i2, float* out0) {
  // Allocate intermediate buffers.
  float* buf_0 = (float*)std::malloc(4 * 4608);
  float* buf_1 = (float*)std::malloc(4 * 4608);
  float* buf_2 = (float*)std::malloc(4 * 4608);

  // Pre-implemented op-based DNNL functions.
  dnnl_conv2d(dnnl_0_i0, dnnl_0_i1, buf_0, 1, 32, 14, 14, 32, 1, 0, 0, 3, 3, 1, 1);
  dnnl_add(buf_0, dnnl_0_i2, buf_1, 1, 32, 12, 12);
  dnnl_relu(buf_1, buf_2, 1, 32, 12, 12);

  // Copy the final output to the corresponding buffer.
  std::memcpy(out0, buf_2, 4 * 4608);
  std::free(buf_0);
  std::free(buf_1);
  std::free(buf_2);
}

// The wrapper function with all arguments in DLTensor type.
extern "C" int dnnl_0_wrapper_(DLTensor* arg0,
        DLTensor* arg1,
        DLTensor* arg2,
        DLTensor* out0) {

  // Cast all DLTensor to primitive type buffers and invoke the above
  // execution function.
  dnnl_0_(static_cast<float*>(arg0->data),
  static_cast<float*>(arg1->data),
  static_cast<float*>(arg2->data),
  static_cast<float*>(out0->data));
  return 0;
}

// The TVM macro to generate TVM runtime compatible function "dnnl_0"
// from our generated "dnnl_0_wrapper_".
TVM_DLL_EXPORT_TYPED_FUNC(dnnl_0, dnnl_0_wrapper_);
"""
OPTIONS = ["-O2", "-std=c++14"]
needs_cpp = pytest.mark.skipif(
    not any(map(shutil.which, c_compiler.CPP.names)), reason="no C++ compiler is installed here"
)


@pytest.fixture
def contrib_path(tmp_path: Path) -> str:
    """The folder of the vendor's header, which no compiler looks into by itself."""
    (tmp_path / "contrib/dnnl").mkdir(parents=True)
    (tmp_path / "contrib/dnnl/dnnl_kernel.h").write_text(DNNL_KERNEL)
    return str(tmp_path / "contrib")


def conv_add_relu() -> tuple[IRModule, list[np.ndarray]]:
    """The graph, and whole numbers to feed, whose sums are the same in any order."""
    b = FunctionBuilder()
    shapes = (1, 32, 14, 14), (32, 32, 3, 3), (1, 32, 12, 12)
    feeds = [np.round(floats(*shape, seed=n)) for n, shape in enumerate(shapes)]
    data, weight, more = (b.input(f"i{n}", np.shape(feed)) for n, feed in enumerate(feeds))
    result = b.op("nn.relu", b.op("add", b.op("nn.conv2d", data, weight), more))
    return IRModule({"main": b.function(result)}), feeds


@needs_cpp
def test_generated_code_of_the_documents(contrib_path):
    """Code as TVM's C source codegen writes it, to the letter."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            symbols = {"dnnl_0": lambda *args: nn.Tensor.placeholder(args[2].shape, "float32")}
            self.extern = nn.SourceModule(symbols, DNNL_0, compile_options=["-I" + contrib_path])

        def forward(self, i0, i1, i2):
            return self.extern["dnnl_0"](i0, i1, i2)

    mod, feeds = conv_add_relu()
    spec = {"forward": {f"i{n}": nn.spec.Tensor(list(feed.shape)) for n, feed in enumerate(feeds)}}
    ex = ky.compile(nn.ModuleSpec(Graph(), spec, allow_extern=True), backends=[])
    assert_allclose(ex(*feeds), evaluate(mod, feeds)[0])


class VendorSerializer(JSONSerializer):
    def visit_composite(self, composite: Any, call: Any) -> KernelNode:
        (binding,) = composite.bindings
        op = binding.value
        padding, strides = op.attrs.get("padding", ()), op.attrs.get("strides", ())
        inputs = [(str(n), arg) for n, arg in enumerate(op.args)]
        return KernelNode(op.op_name, inputs, {"padding": [*padding[:2]], "strides": [*strides]})


class VendorCodegen(CSourceCodegen):
    language = "c++"
    headers = (Header("dnnl/dnnl_kernel.h"),)
    preamble = "#include <dnnl/dnnl_kernel.h>\nusing namespace tvm::runtime::contrib;"

    def statement(self, node: Any, operands: Mapping[str, Any], outputs: Any) -> str:
        inputs, out = [operands[name] for name in sorted(operands)], outputs[0]
        names = ", ".join(f"(float*){tensor.name}" for tensor in [*inputs, out])
        if node.op != "nn.conv2d":
            return f"dnnl_{node.op.removeprefix('nn.')}({names}, {', '.join(map(str, out.shape))});"
        numbers = [
            *inputs[0].shape,
            out.shape[1],
            1,
            *node.attrs["padding"],
            *inputs[1].shape[2:],
            *node.attrs["strides"],
        ]
        return f"dnnl_conv2d({names}, {', '.join(map(str, numbers))});"


class Vendor(Backend):
    name = "vendor"
    merge_composites = True

    def patterns(self, target: Any) -> list[FusionPattern]:
        return [FusionPattern(f"vendor.{op}", is_op(op)(varargs=True)) for op in ("nn.conv2d", "add", "nn.relu")]

    def codegen(self, regions: Any, options: Mapping[str, Any]) -> Any:
        return VendorCodegen().generate(regions, VendorSerializer())


@needs_cpp
def test_export_library_compiles_generated_code_with_the_users_options(contrib_path, tmp_path, install):
    install(Vendor())
    mod, feeds = conv_add_relu()
    lib = ky.compile(mod, backends=["vendor"], strict=True)
    assert_offloaded(lib, "vendor", at_least=3)
    lib_path = tmp_path / "lib.so"
    with pytest.raises(ToolchainError, match=r"dnnl/dnnl_kernel\.h"):
        lib.export_library(lib_path, standalone=True, options=OPTIONS)
    lib.export_library(lib_path, standalone=True, options=[*OPTIONS, "-I" + contrib_path])
    for found in (Model(lib_path).run(feeds)[0], ky.load(lib_path)(*feeds)):
        assert_allclose(found, evaluate(mod, feeds)[0])


# --- An ARM CPU and an accelerator ------------------------------------------------------------------------------------
TAKEN = ("nn.conv2d", "nn.relu", "matmul")


def test_an_arm_cpu_runs_what_the_accelerator_lacks(install):
    """Convolutions, relu and products are the accelerator's; what else a network has is compiled for the CPU."""
    install(InterpretedBackend("accelerator", TAKEN))
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("nn.conv2d", b.input("x", (1, 3, 6, 6)), floats(4, 3, 3, 3)))
    scores = b.op("nn.softmax", b.op("matmul", y, floats(4, 5)), axis=1)
    mod, x = IRModule({"main": b.function(scores)}), floats(1, 3, 6, 6, seed=1)
    for target in (ky.Target("cpu"), ky.Target("cpu", arch="aarch64", mcpu="cortex-a72")):
        ex = ky.compile(mod, target=target, backends=["accelerator"])
        taken = {(node.op, node.backend) for node in ex.report.nodes}
        assert taken == {*((op, "accelerator") for op in TAKEN), ("nn.softmax", "native-cpu")}
        (kernels,) = [module for module in ex.modules if isinstance(module, NativeCpuModule)]
        assert kernels.machine.architecture == (target.arch or platform.machine())
        if target.arch is None:
            assert_allclose(ex(x), evaluate(mod, [x])[0])
