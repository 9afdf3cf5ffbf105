"""Snippets of TVM's documents, as they stand there, with names replaced as docs/coming-from-tvm.md says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import nn, transform
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.patterns import (
    Accept,
    Decline,
    FusionPattern,
    Match,
    get_patterns,
    is_op,
    register_op_rule,
    register_patterns,
    templates,
    unregister_op_rules,
    unregister_patterns,
    wildcard,
)
from kernelyard.testing import assert_allclose, evaluate

X = np.random.default_rng(0).standard_normal((1, 3, 6, 6), dtype=np.float32)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for backend in ("dnnl", "cublas"):
        unregister_op_rules(backend)
        unregister_patterns(backend)


def small(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.1, 0.3, shape).astype(np.float32)


def create_module_from_model() -> IRModule:
    """Convolution, bias, batch norm, relu; another convolution with relu; and what is left over."""
    b = FunctionBuilder()
    y = b.op("add", b.op("nn.conv2d", b.input("x", X.shape), small(4, 3, 3, 3)), small(4, 1, 1, seed=1))
    y = b.op("nn.batch_norm", y, *(small(4, seed=seed) for seed in range(2, 6)))
    y = b.op("nn.relu", b.op("nn.conv2d", b.op("nn.relu", y), small(4, 4, 3, 3, seed=6)))
    y = b.op("subtract", b.op("multiply", y, y), y)
    return IRModule({"main": b.function(b.op("matmul", y, small(2, 5, seed=7)))})


def check_result(mod: IRModule, kinds: set[str]) -> None:
    mod = transform.RunCodegen(strict=True)(mod)
    exe = ky.compile(mod, backends=[])
    assert {module.kind for module in exe.modules} == kinds
    assert_allclose(exe(X), evaluate(create_module_from_model(), [X])[0])


# --- Bring DNNL to TVM ------------------------------------------------------------------------------------------------
def _register_external_op_helper(op_name, supported=True):
    @register_op_rule(op_name, "dnnl")
    def _func_wrapper(call):
        return Accept() if supported else Decline("unsupported", "this operator is not taken")

    return _func_wrapper


def make_pattern(with_bias=True):
    data = wildcard()
    weight = wildcard()
    bias = wildcard()
    conv = is_op("nn.conv2d")(data, weight)
    if with_bias:
        conv_out = is_op("add")(conv, bias)
    else:
        conv_out = conv
    return is_op("nn.relu")(conv_out)


def pattern_table():
    conv2d_bias_relu_pat = ("dnnl.conv2d_bias_relu", make_pattern(with_bias=True))
    conv2d_relu_pat = ("dnnl.conv2d_relu", make_pattern(with_bias=False))
    return [conv2d_bias_relu_pat, conv2d_relu_pat]


def register_seven() -> None:
    _register_external_op_helper("nn.batch_norm")
    _register_external_op_helper("nn.conv2d")
    _register_external_op_helper("matmul")
    _register_external_op_helper("nn.relu")
    _register_external_op_helper("add")
    _register_external_op_helper("subtract")
    _register_external_op_helper("multiply")


def composites(mod: IRModule) -> list[str]:
    return [f.attrs["Composite"] for f in mod.graph_functions().values() if "Composite" in f.attrs]


def test_rules_for_single_operators_and_four_passes() -> None:
    register_seven()
    mod = create_module_from_model()
    mod = transform.MergeComposite(pattern_table())(mod)
    assert sorted(composites(mod)) == ["dnnl.conv2d_relu"]  # a batch norm stands behind the other one
    mod = transform.AnnotateTarget(["dnnl"])(mod)
    mod = transform.MergeCompilerRegions()(mod)
    mod = transform.PartitionGraph()(mod)
    check_result(mod, {"dnnl"})


def test_an_operator_that_a_rule_does_not_support() -> None:
    _register_external_op_helper("multiply", supported=False)
    _register_external_op_helper("subtract")
    flow = [transform.AnnotateTarget("dnnl"), transform.MergeCompilerRegions(), transform.PartitionGraph()]
    placed = transform.Sequential(flow, "flow")(create_module_from_model())
    regions = [f for f in placed.graph_functions().values() if "Codegen" in f.attrs]
    assert [binding.value.op_name for f in regions for binding in f.bindings] == ["subtract"]


def test_partition_for_dnnl_as_a_list_of_passes() -> None:
    seq = transform.Sequential(
        [
            transform.Canonicalize(),
            transform.InferTypes(),
            transform.FoldBatchNorm(),
            transform.SimplifyInference(),
            transform.FoldConstants(),
            transform.FoldScaleAxis(),
            transform.FoldConstants(),
            transform.DeadCodeElimination(),
            transform.MergeComposite(pattern_table()),
            transform.AnnotateTarget("dnnl"),
            transform.MergeCompilerRegions(),
            transform.PartitionGraph(),
        ],
        "partition_for_dnnl",
    )
    with_names = seq(create_module_from_model())
    assert sorted(composites(with_names)) == ["dnnl.conv2d_bias_relu", "dnnl.conv2d_relu"]
    taken = [f.attrs["PartitionedFromPattern"] for f in with_names.graph_functions().values() if "Composite" in f.attrs]
    assert "nn.conv2d_add_nn.relu_" in taken
    check_result(with_names, {"dnnl", "native-cpu"})


def test_scales_and_additions_fold_in_the_order_of_the_documents() -> None:
    """SimplifyInference makes a batch norm of a scale and a shift, FoldScaleAxis and SimplifyExpr fold these."""
    seq = transform.Sequential(
        [
            transform.Canonicalize(),
            transform.InferTypes(),
            transform.SimplifyInference(),
            transform.FoldConstants(),
            transform.FoldScaleAxis(),
            transform.FoldBatchNorm(),
            transform.FoldConstants(),
            transform.DeadCodeElimination(),
        ],
        "simplified",
    )
    mod = create_module_from_model()
    names = [binding.value.op_name for binding in seq(mod).entry_functions()["main"].bindings]
    assert names[:5] == ["nn.conv2d", "add", "nn.relu", "nn.conv2d", "nn.relu"]
    assert_allclose(evaluate(seq(mod), [X])[0], evaluate(mod, [X])[0])


def make_pattern_with_something():
    data = wildcard()
    weight = wildcard()
    conv = is_op("nn.conv2d")(data, weight)
    return wildcard()(conv)


def test_a_convolution_with_something() -> None:
    """The name says what the pattern is, and PartitionedFromPattern what it matched."""
    mod = transform.MergeComposite([("dnnl.conv2d_with_something", make_pattern_with_something())])(
        create_module_from_model()
    )
    assert composites(mod) == ["dnnl.conv2d_with_something"] * 2
    found = [f.attrs["PartitionedFromPattern"] for f in mod.graph_functions().values() if "Composite" in f.attrs]
    assert sorted(found) == ["nn.conv2d_add_", "nn.conv2d_nn.relu_"]


def test_partition_for_dnnl_binds_params() -> None:
    b = FunctionBuilder()
    y = b.op("nn.conv2d", b.input("x", X.shape), b.input("weight", (4, 3, 3, 3)))
    y = b.op("nn.batch_norm", b.op("add", y, b.input("bias", (4, 1, 1))), *(small(4, seed=n) for n in range(2, 6)))
    mod = IRModule({"main": b.function(b.op("nn.relu", y))})
    params = {"weight": small(4, 3, 3, 3), "bias": small(4, 1, 1, seed=1)}
    placed = ky.partition_for_dnnl(mod, params)
    assert len(composites(placed)) == 1
    exe = ky.compile(transform.RunCodegen(strict=True)(placed), backends=[])
    assert {module.kind for module in exe.modules} == {"dnnl"}
    assert_allclose(exe(X), evaluate(mod, [X, *params.values()])[0])


# --- External Library Dispatch ----------------------------------------------------------------------------------------
def _check_matmul(match: Match) -> Accept | Decline:
    root = match.call_of("root")
    is_known = root.tensor_type.dtype in ("float16", "float32")
    return Accept() if is_known else Decline("dtype", "neither float16 nor float32")


def partition_for_cublas(mod, bind_constants=False):
    patterns = [each for each in get_patterns("cublas") if isinstance(each, FusionPattern)]
    return transform.FuseOpsByPattern(patterns, bind_constants=bind_constants, annotate_codegen=True)(mod)


def test_patterns_are_registered_from_templates_and_a_function_partitions() -> None:
    matmul = templates.matmul()
    register_patterns(
        [
            ("cublas.matmul_bias_relu", is_op("nn.relu")(templates.with_bias(matmul)), _check_matmul),
            ("cublas.matmul", matmul, _check_matmul),
        ]
    )
    b = FunctionBuilder()
    x, w, bias = b.input("x", (4, 8)), b.input("w", (8, 16)), b.input("bias", (16,))
    mod = IRModule({"main": b.function(b.op("nn.relu", b.op("add", b.op("matmul", x, w), bias)))})
    placed = partition_for_cublas(mod)
    assert composites(placed) == ["cublas.matmul_bias_relu"]
    assert [f.attrs["Codegen"] for f in placed.graph_functions().values() if "Codegen" in f.attrs] == ["cublas"]


# --- External modules -------------------------------------------------------------------------------------------------
MY_FUNC = """
#include <dlpack/dlpack.h>
#include <tvm/runtime/data_type.h>
#include <tvm/runtime/packed_func.h>
namespace {
// anonymous namespace hides the symbol `_my_func_impl` from other TUs
int _my_func_impl(DLTensor* a, DLTensor* b, DLTensor* c) {
  // `a` and `b` are inputs, and `c` is the output
  const int64_t X = c->shape[0], Y = c->shape[1], Z = c->shape[2], N = c->shape[3];
  const float *from = static_cast<const float*>(a->data), *more = static_cast<const float*>(b->data);
  for (int64_t x = 0; x < X; ++x)
    for (int64_t y = 0; y < Y; ++y)
      for (int64_t z = 0; z < Z; ++z)
        for (int64_t n = 0; n < N; ++n)
          static_cast<float*>(c->data)[((x * Y + y) * Z + z) * N + n] = from[x * Y + y] + more[(y * Z + z) * 5 + n % 5];
  return 0;
}
}
// expose symbol `my_func` instead of `_my_func_impl`
TVM_DLL_EXPORT_TYPED_FUNC(my_func, _my_func_impl);
"""


def shape_dtype_inference(a, b):
    x, y, _ = a.shape
    _, z, _ = b.shape
    return nn.Tensor.placeholder((x, y, z, 9), dtype="float32")


SYMBOLS = {"my_func": shape_dtype_inference}


class MyModel(nn.Module):
    def __init__(self, extern: nn.ExternModule) -> None:
        self.extern = extern

    def forward(self, a, b):
        return self.extern["my_func"](a, b) * 2


def my_model(extern: nn.ExternModule) -> nn.ModuleSpec:
    spec = {"forward": {"a": nn.spec.Tensor([2, 3, 1]), "b": nn.spec.Tensor([3, 4, 5])}}
    return nn.ModuleSpec(MyModel(extern), spec, allow_extern=True)


def feeds() -> tuple[np.ndarray, np.ndarray]:
    return small(2, 3, 1), small(3, 4, 5, seed=1)


def expected() -> np.ndarray:
    a, b = feeds()
    return 2 * (a[:, :, None, :] + b[None][..., np.arange(9) % 5])


def test_a_source_module_of_the_documents() -> None:
    exe = ky.compile(my_model(nn.SourceModule(SYMBOLS, MY_FUNC)), backends=[])
    np.testing.assert_allclose(np.asarray(exe(*feeds())), expected(), rtol=1e-6)


def test_functions_of_object_files_get_host_memory_in_cuda_programs(tmp_path: Path) -> None:
    """Their code is the host's: a CUDA program copies their arguments, and kernels go on with what they wrote."""
    (tmp_path / "my_func.o").write_bytes(nn.SourceModule(SYMBOLS, MY_FUNC).compile())
    exe = ky.compile(my_model(nn.ObjectModule(SYMBOLS, tmp_path / "my_func.o")), target="cuda", backends=[])
    found = ky.VirtualMachine(exe, ky.cuda("emulator"))["forward"](*feeds())
    np.testing.assert_allclose(found.numpy(), expected(), rtol=1e-6)
