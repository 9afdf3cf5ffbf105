"""Kernels of users: rules, PrimFuncs and compiled functions stand in for ours, and the report names them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.errors import LegalizeError, UnknownOpError, VerifyError
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.legalize import custom_kernel, isolate_kernels, register_kernel, unregister_kernel
from kernelyard.runtime.abi.native_unit import NativeFunction, NativeUnit
from kernelyard.runtime.abi.spec import Signature, TensorSpec
from kernelyard.runtime.modules.c_source import CSourceModule
from kernelyard.runtime.report import Report
from kernelyard.tir import PrimFunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import select

X = np.float32([[-1, 2, -3], [4, -5, 6]])


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with isolate_kernels():
        yield


def relu_times_two(b, x):
    return b.compute(x.shape, lambda *i: select(x[i] > 0, x[i] * 2, 0))


def network(shape=(2, 3), dtype: str = "float32") -> IRModule:
    """x - relu(x + 1), in one kernel."""
    b = FunctionBuilder()
    x = b.input("x", shape, dtype)
    return IRModule({"main": b.function(b.op("subtract", x, b.op("nn.relu", b.op("add", x, 1.0))))})


def compiled(**how) -> ky.Executable:
    return ky.compile(network(**how), backends=[], strict=True)


def customs(exe: ky.Executable) -> list[str]:
    return [name for kernel in exe.report.kernels for name in kernel.custom]


def test_a_rule_is_used_fused_and_named() -> None:
    custom_kernel("nn.relu", name="mine")(relu_times_two)
    exe = compiled()
    assert [(kernel.ops, kernel.custom, kernel.calls) for kernel in exe.report.kernels] == [
        (("add", "nn.relu", "subtract"), ("mine",), 1)
    ]
    np.testing.assert_array_equal(exe(X).numpy(), X - 2 * np.maximum(X + 1, 0))
    assert "(your own: mine)" in exe.report.kernel_text()
    assert Report.from_json(exe.report.to_json()) == exe.report
    unregister_kernel("mine")
    exe = compiled()
    assert customs(exe) == []
    np.testing.assert_array_equal(exe(X).numpy(), X - np.maximum(X + 1, 0))


def test_the_last_that_accepts_the_call_gets_it() -> None:
    custom_kernel("nn.relu", name="for_all")(relu_times_two)
    custom_kernel("nn.relu", name="for_rows_of_3", accepts=lambda types, attrs: types[0].shape[-1] == 3)(relu_times_two)
    custom_kernel("nn.relu", name="for_halves", accepts=lambda types, attrs: types[0].dtype == "float16")(
        relu_times_two
    )
    assert customs(compiled()) == ["for_rows_of_3"]
    assert customs(compiled(shape=(2, 4))) == ["for_all"]
    assert customs(compiled(shape=(dims.symbol("n"), 3))) == ["for_rows_of_3"]


def test_attributes_are_handed_over() -> None:
    @custom_kernel("nn.leaky_relu", accepts=lambda types, attrs: attrs["alpha"] > 1)
    def steep(b, x, *, alpha):
        return b.compute(x.shape, lambda *i: x[i] * alpha)

    b = FunctionBuilder()
    x = b.input("x", (2, 3))
    module = IRModule({"main": b.function(*(b.op("nn.leaky_relu", x, alpha=alpha) for alpha in (0.5, 3.0)))})
    exe = ky.compile(module, backends=[], strict=True)
    flat, steep_one = (result.numpy() for result in exe(X))
    np.testing.assert_array_equal(flat, np.where(X < 0, X * 0.5, X))
    np.testing.assert_array_equal(steep_one, X * 3)
    assert customs(exe) == ["steep"]


def test_narrow_floats_may_be_widened() -> None:
    seen: list[str] = []

    @custom_kernel("nn.relu", widen=True)
    def wide(b, x):
        seen.append(x.dtype)
        return relu_times_two(b, x)

    assert customs(compiled(dtype="float16")) == ["wide"]
    assert seen == ["float32"]


def primfunc(rows: dims.Dim) -> PrimFunc:
    b = PrimFuncBuilder()
    return b.finish((relu_times_two(b, b.input("x", TensorType((rows, 3), "float32"))),))


def test_a_primfunc_is_for_its_own_types() -> None:
    register_kernel("nn.relu", primfunc(2), name="for_two_rows")
    register_kernel("nn.relu", primfunc(dims.symbol("n")), name="for_n_rows")
    assert customs(compiled()) == ["for_two_rows"]
    assert customs(compiled(shape=(dims.symbol("n"), 3))) == ["for_n_rows"]
    assert customs(compiled(shape=(dims.symbol("m"), 3))) == []
    assert customs(compiled(shape=(5, 3))) == []
    exe = compiled(shape=(dims.symbol("n"), 3))
    np.testing.assert_array_equal(exe(X).numpy(), X - 2 * np.maximum(X + 1, 0))


def c_module() -> CSourceModule:
    """A function in C: the elements of one tensor of 6 floats, doubled where they are positive."""
    spec = TensorSpec((2, 3), "float32", "x")
    source = """
#include <stdint.h>
#include <stddef.h>
int32_t kyc_f_prepare(const void* const* constants, int32_t threads, void** shared) { *shared = NULL; return 0; }
int32_t kyc_f_bind(void* shared, const int64_t* s, int32_t most, void** call, int64_t* nbytes) { *call = NULL; *nbytes = 0; return 0; }
int32_t kyc_f_run(void** args, void* call, int32_t threads, void* workspace) {
  const float* x = args[0]; float* y = args[1];
  for (int i = 0; i < 6; i++) y[i] = x[i] > 0 ? 2 * x[i] : 0;
  return 0;
}
void kyc_f_unbind(void* call) {}
void kyc_f_release(void* shared) {}
"""
    function = NativeFunction("doubling_relu", "kyc_f", Signature((spec,), (spec,)))
    return CSourceModule(NativeUnit(source, (function,)), {})


def test_a_compiled_function_is_called_as_it_is(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path))
    register_kernel("nn.relu", c_module(), name="doubling_relu", accepts=lambda types, _: types[0].shape == (2, 3))
    exe = compiled()
    assert [(kernel.backend, kernel.name, kernel.ops) for kernel in exe.report.kernels if kernel.custom] == [
        ("extern", "doubling_relu", ("nn.relu",))
    ]
    assert [node.backend for node in exe.report.nodes if node.op == "nn.relu"] == ["extern"]
    np.testing.assert_array_equal(exe(X).numpy(), X - 2 * np.maximum(X + 1, 0))
    exe.save(tmp_path / "own.kyar")
    unregister_kernel("doubling_relu")  # the artifact has it
    np.testing.assert_array_equal(ky.load(tmp_path / "own.kyar")(X).numpy(), X - 2 * np.maximum(X + 1, 0))
    assert customs(compiled()) == []


def test_explain_shows_what_compile_would_make() -> None:
    custom_kernel("nn.relu", name="mine")(relu_times_two)
    assert ky.explain(network(), backends=[]).kernels == compiled().report.kernels


def test_a_rule_of_another_type_is_refused() -> None:
    custom_kernel("nn.relu", name="flat")(lambda b, x: b.compute((6,), lambda i: x[0, 0]))
    with pytest.raises(LegalizeError, match="another type"):
        compiled()


def test_a_failing_accepts_is_named() -> None:
    custom_kernel("nn.relu", name="picky", accepts=lambda types, attrs: attrs["alpha"] > 1)(relu_times_two)
    with pytest.raises(LegalizeError, match="accepts\\(\\) of the custom kernel 'picky' failed"):
        compiled()


def test_what_cannot_be_registered() -> None:
    custom_kernel("nn.relu", name="mine")(relu_times_two)
    with pytest.raises(LegalizeError, match="two custom kernels are called 'mine'"):
        custom_kernel("tanh", name="mine")(relu_times_two)
    with pytest.raises(LegalizeError, match="no identifier"):
        custom_kernel("tanh", name="my kernel")(relu_times_two)
    with pytest.raises(UnknownOpError):
        custom_kernel("nn.rleu")(relu_times_two)
    with pytest.raises(VerifyError):
        register_kernel("nn.relu", primfunc(2).with_blocks(()), name="empty")
    with pytest.raises(LegalizeError, match="no custom kernel is called 'other'"):
        unregister_kernel("other")
