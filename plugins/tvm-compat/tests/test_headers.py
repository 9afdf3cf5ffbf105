"""C++ code with the headers and macros of TVM's documentation is compiled as it is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import nn
from kernelyard.errors import ExecutionError, ToolchainError
from kernelyard.nn import cpp_compiler

# As people write external modules: an anonymous namespace, tensors, and the macro under its older name.
EXTERN = """
#include <dlpack/dlpack.h>
#include <tvm/runtime/data_type.h>
#include <tvm/runtime/packed_func.h>
#include <stdexcept>
namespace {
int _outer(DLTensor* a, DLTensor* b, DLTensor* c) {
  if (tvm::runtime::DataType(a->dtype) != tvm::runtime::DataType::Float(32)) throw std::runtime_error("float32 only");
  const float *x = static_cast<float*>(a->data), *y = static_cast<float*>(b->data);
  for (int64_t i = 0; i < a->shape[0]; ++i)
    for (int64_t j = 0; j < b->shape[0]; ++j) static_cast<float*>(c->data)[i * b->shape[0] + j] = x[i] * y[j];
  return 0;
}
}  // namespace
TVM_DLL_EXPORT_TYPED_FUNC(outer, _outer);
"""

# As a code generator writes it: functions on plain pointers, from the vendor's header, wrapped for tensors.
GENERATED = """
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <tvm/runtime/c_runtime_api.h>
#include <tvm/runtime/container.h>
#include <tvm/runtime/packed_func.h>
#include <dlpack/dlpack.h>
#include <vendor/vendor_kernel.h>
using namespace tvm::runtime;
using namespace tvm::runtime::contrib;

extern "C" void vendor_0_(float* vendor_0_i0, float* vendor_0_i1, float* out0) {
  float* buf_0 = (float*)std::malloc(4 * 6);
  vendor_add(vendor_0_i0, vendor_0_i1, buf_0, 2, 3);
  vendor_relu(buf_0, out0, 2, 3);
  std::free(buf_0);
}

extern "C" int vendor_0_wrapper_(DLTensor* arg0, DLTensor* arg1, DLTensor* out0) {
  vendor_0_(static_cast<float*>(arg0->data), static_cast<float*>(arg1->data), static_cast<float*>(out0->data));
  return 0;
}

TVM_DLL_EXPORT_TYPED_FUNC(vendor_0, vendor_0_wrapper_);
"""
VENDOR = """
#pragma once
inline void vendor_add(float* a, float* b, float* out, int rows, int columns) {
  for (int i = 0; i < rows * columns; ++i) out[i] = a[i] + b[i];
}
inline void vendor_relu(float* x, float* out, int rows, int columns) {
  for (int i = 0; i < rows * columns; ++i) out[i] = x[i] > 0 ? x[i] : 0;
}
"""

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, cpp_compiler.COMPILERS)), reason="no C++ compiler is installed here"
)


def compiled(module: nn.ExternModule, symbol: str, **inputs: Any) -> ky.Executable:
    class Net(nn.Module):
        def forward(self, a: nn.Tensor, b: nn.Tensor) -> Any:
            return module[symbol](a, b)

    return ky.compile(nn.ModuleSpec(Net(), {"forward": inputs}, allow_extern=True), backends=[])


def outer(a: nn.Tensor, b: nn.Tensor) -> nn.Tensor:
    return nn.Tensor.placeholder((a.shape[0], b.shape[0]), "float32")


def test_an_external_module(tmp_path: Path) -> None:
    module = nn.SourceModule({"outer": outer}, EXTERN)
    exe = compiled(module, "outer", a=nn.spec.Tensor(["n"]), b=nn.spec.Tensor(["m"]))
    exe.save(tmp_path / "m.kyar")
    a, b = np.float32([1, 2, 3]), np.float32([4, 5])
    for each in (exe, ky.load(tmp_path / "m.kyar")):
        np.testing.assert_array_equal(each(a, b), np.outer(a, b))


def test_what_the_function_throws_is_an_error() -> None:
    module = nn.SourceModule({"outer": outer}, EXTERN)
    tensors = {name: nn.spec.Tensor([2], "float64") for name in "ab"}
    with pytest.raises(ExecutionError, match="float32 only"):
        compiled(module, "outer", **tensors)(np.zeros(2), np.zeros(2))


def test_what_a_code_generator_writes(tmp_path: Path) -> None:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor/vendor_kernel.h").write_text(VENDOR)
    options = ["-O2", "-std=c++17", f"-I{tmp_path}"]
    module = nn.SourceModule({"vendor_0": lambda a, b: a}, GENERATED, compile_options=options)
    a, b = np.float32([[1, -2, 3], [4, 5, -6]]), np.ones((2, 3), np.float32)
    exe = compiled(module, "vendor_0", a=nn.spec.Tensor([2, 3]), b=nn.spec.Tensor([2, 3]))
    np.testing.assert_array_equal(exe(a, b), np.maximum(a + b, 0))


def test_where_the_headers_are_missing_the_error_says_what_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_compiler, "entry_points", lambda group: [])
    with pytest.raises(ToolchainError, match="data_type") as caught:
        nn.SourceModule({"outer": outer}, EXTERN).compile()
    assert "pip install kernelyard-tvm-compat" in str(caught.value.hint)
