"""Modules as ONNX models: onnxruntime runs what is written, and computes what the operators mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotInOnnxruntime

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import KernelyardError
from kernelyard.ir import Constant, FunctionBuilder, IRModule, all_ops
from kernelyard.testing import evaluate, op_cases
from kernelyard.testing.op_cases import OpCase, assert_conforms, one_symbol_per_axis, one_symbol_per_size
from kernelyard_onnx_export import ExportError, to_onnx
from kernelyard_onnx_export.registry import CONVERTERS

WITHOUT_CONVERTER = {
    *("cumprod", "expm1", "log1p", "left_shift", "right_shift", "reinterpret", "round_to_format"),
    *(
        "image.box_candidates",
        "image.non_max_suppression",
        "image.roi_align",
        "image.roi_align_adaptive",
        "image.roi_max_pool",
        "image.suppress_boxes",
        "nn.attention_var_len",
        "nn.attention_cached",
        "nn.attention_paged",
    ),
    *(
        "nn.dynamic_quantize_lstm",
        "nn.gru",
        "nn.lstm",
        "nn.rnn",
        "random.bits",
        "random.key",
        "random.normal",
        "random.uniform",
    ),
    *("alloc_tensor", "if", "while", "invoke_closure", "make_closure", "nonzero", "unique", "tensor_to_shape"),
    *("fake_quantize", "invert_permutation", "lookup", "ml.tree_ensemble"),
}
# ONNX keeps attributes in float32, which a test in float64 sees; NumPy has no bfloat16 for onnxruntime to take.
NARROWER_IN_ONNXRUNTIME = {"LRN"}  # odd sizes and rank 4 alone, where the standard has all
NOT_IN_ONNX = {"power: int8", "power: uint8", "nn.celu: float16"}  # ExportError says so
DTYPES = {"float32", "float16", "int8", "uint8", "int32", "int64", "bool"}


def run(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a model in onnxruntime; in Kernelyard's own importer where onnxruntime has no kernel for the dtype."""
    onnx.checker.check_model(model)
    feeds = {info.name: array for info, array in zip(model.graph.input, inputs, strict=True)}
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # 4-bit weights times float32
    if any(node.op_type in NARROWER_IN_ONNXRUNTIME for node in model.graph.node):
        return run_by_ourselves(model, feeds)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except NotInOnnxruntime:
        return run_by_ourselves(model, feeds)
    return session.run(None, feeds)


def run_by_ourselves(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [tensor.numpy() for tensor in ky.compile(model, backends=[]).run(feeds).values()]


def cases() -> list[OpCase]:
    return [case for case in op_cases(CONVERTERS) if dtypes_of(case) <= DTYPES and case.id not in NOT_IN_ONNX]


def dtypes_of(case: OpCase) -> set[str]:
    stated = {value for name, value in case.sample.attributes.items() if name == "dtype"}
    return stated | {type_.dtype for type_ in case.types}


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_every_sample_is_written(case: OpCase) -> None:
    assert_conforms(case, lambda module, inputs: run(to_onnx(module), inputs))


def test_what_cannot_be_written_is_known() -> None:
    compiler_made = {op.name for op in all_ops() if op.name.startswith("call_")}
    assert {op.name for op in all_ops()} - set(CONVERTERS) - compiler_made == WITHOUT_CONVERTER


@pytest.mark.parametrize("name", ["reshape", "broadcast_to", "nn.attention", "image.resize", "strided_slice", "arange"])
def test_sizes_that_calls_decide(name: str) -> None:
    for case in op_cases([name]):
        if dtypes_of(case) <= DTYPES and case.sample.inputs:
            module = case.module(
                dim_of=lambda operand, axis, size: size if axis else one_symbol_per_axis(operand, 0, size)
            )
            (result,) = run(to_onnx(module), case.inputs())
            np.testing.assert_allclose(result, case.expected()[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["nn.attention", "nn.attention_bias"])
def test_heads_that_calls_decide(name: str) -> None:
    cases = [case for case in op_cases([name]) if dtypes_of(case) <= DTYPES]
    written = 0
    for case in cases:
        try:
            module = case.module(dim_of=one_symbol_per_size)
        except KernelyardError:
            continue  # such sizes must be known
        (result,) = run(to_onnx(module), case.inputs())
        np.testing.assert_allclose(result, case.expected()[0], rtol=1e-3, atol=1e-5)
        written += 1
    assert written


def test_sizes_are_computed_from_those_of_inputs() -> None:
    b, n = FunctionBuilder(), symbol("n")
    x = b.input("x", (n, 4))
    twice = b.op("concat", x, b.op("reshape", b.op("reshape", x, shape=(n * 4,)), shape=(n, 4)), axis=0)
    module = IRModule({"main": b.function(b.op("broadcast_to", twice, shape=(3, n * 2, 4)))})
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (result,) = run(to_onnx(module), [x])
    np.testing.assert_array_equal(result, np.broadcast_to(np.concatenate([x, x]), (3, 6, 4)))


@pytest.mark.parametrize("rows", [4, 5])
def test_sizes_are_rounded_down_below_zero_too(rows: int) -> None:
    b, n = FunctionBuilder(), symbol("n")
    pads = (0, 0, ((n + 1) // 2) * 2 + (-n) // 2 + n, 0)
    module = IRModule({"main": b.function(b.op("pad", b.input("x", (n, 2)), pads=pads))})
    (result,) = run(to_onnx(module), [np.ones((rows, 2), np.float32)])
    assert result.shape == (rows + (rows + 1) // 2 * 2 + (-rows) // 2 + rows, 2)


def test_names_and_metadata_stay() -> None:
    b = FunctionBuilder()
    function = b.function(b.op("nn.relu", b.input("x", (2,))), attrs={"input_names": ("in",), "output_names": ("out",)})
    model = to_onnx(IRModule({"main": function}, {"metadata": {"author": "us"}}))
    assert ([each.name for each in model.graph.input], [each.name for each in model.graph.output]) == (["in"], ["out"])
    assert [(entry.key, entry.value) for entry in model.metadata_props] == [("author", "us")]


def test_all_operators_that_stand_in_the_way_are_listed() -> None:
    b = FunctionBuilder()
    y = b.op("expm1", b.op("log1p", b.op("log1p", b.input("x", (2,)))))
    with pytest.raises(ExportError, match="cannot be written") as caught:
        to_onnx(IRModule({"main": b.function(y)}))
    assert (caught.value.code, caught.value.found) == ("KY410", "expm1 (1), log1p (2)")


def test_a_dtype_that_onnx_does_not_have_is_an_error() -> None:
    b = FunctionBuilder()
    with pytest.raises(ExportError, match="dtype") as caught:
        to_onnx(IRModule({"main": b.function(b.op("nn.celu", b.input("x", (2,), "float64")))}))
    assert str(caught.value.found) == "Celu of float64"


def test_the_bias_of_a_quantized_convolution_is_stored_as_int32() -> None:
    b, rng = FunctionBuilder(), np.random.default_rng(0)
    unit = np.float32(0.5) * np.array([0.25, 0.5], np.float32)
    zero, codes = np.uint8(3), rng.integers(-127, 128, (2, 3, 1, 1)).astype(np.int8)
    x = b.op("dequantize", b.input("x", (1, 3, 4, 4), "uint8"), np.float32(0.5), zero)
    w = b.op("dequantize", codes, np.array([0.25, 0.5], np.float32), np.int8(0), axis=0)
    bias = (np.array([7, -3]) * unit).astype(np.float32).reshape(1, 2, 1, 1)
    module = IRModule({"main": b.function(b.op("add", b.op("nn.conv2d", x, w), bias))})
    model = to_onnx(module)
    stored = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    assert [each.tolist() for each in stored if each.dtype == np.int32 and each.any()] == [[7, -3]]
    assert [node.op_type for node in model.graph.node].count("Add") == 0
    image = rng.integers(0, 256, (1, 3, 4, 4)).astype(np.uint8)
    (result,) = run(model, [image])
    np.testing.assert_allclose(result, ky.compile(module, backends=[])(image).numpy(), rtol=1e-6)


def test_four_bits_are_stored_in_blocks_of_a_column() -> None:
    b, rng = FunctionBuilder(), np.random.default_rng(0)
    codes, scales = rng.integers(-8, 8, (2, 32, 5)).astype(np.int8), rng.random((2, 1, 5), np.float32) + 0.5
    real = b.op("multiply", b.op("astype", codes, dtype="float32"), scales)
    weight = b.op("reshape", real, shape=(64, 5))
    module = IRModule({"main": b.function(b.op("matmul", b.input("x", (3, 64)), weight))})
    model = to_onnx(module)
    assert {tensor.data_type for tensor in model.graph.initializer if len(tensor.dims) == 2} >= {onnx.TensorProto.INT4}
    assert [node.op_type for node in model.graph.node][:2] == ["DequantizeLinear", "MatMul"]
    x = rng.standard_normal((3, 64)).astype(np.float32)
    (result,) = run(model, [x])
    np.testing.assert_allclose(result, x @ (codes * scales).reshape(64, 5), rtol=1e-4, atol=1e-4)


def test_a_scale_that_leads_to_another_size_is_refused():
    """Resize has scales or sizes, and follows them; here both are stated, and say different things."""
    for sizes in ((1, 1), (18, 7), (17, 8)):
        b = FunctionBuilder()
        resized = b.op("image.resize", b.input("x", (1, 2, 11, 5)), sizes=sizes, scales=(1.6, 1.5), method="cubic")
        with pytest.raises(ExportError, match="another size"):
            to_onnx(IRModule({"main": b.function(resized)}))


def test_pads_that_calls_decide_crop_beyond_an_axis() -> None:
    b, n = FunctionBuilder(), symbol("n")
    module = IRModule({"main": b.function(b.op("pad", b.input("x", (n,)), pads=(-3, 4), value=9.0))})
    for size in (1, 3, 5):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(run(to_onnx(module), [x])[0], evaluate(module, [x])[0])


@pytest.mark.parametrize(
    ("name", "shape", "attrs"),
    [
        ("strided_slice", (12, 2), {"axes": (0,), "begin": (-1,), "end": (0,), "strides": (-2,)}),
        ("reshape", (2, 0), {"shape": (1, 2, 0)}),
        ("reshape", (0, 3), {"shape": (5, 0)}),
    ],
    ids=str,
)
def test_what_has_no_elements_stays_so(name, shape, attrs):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op(name, b.input("x", shape), **attrs))})
    x = np.ones(shape, np.float32)
    (result,) = run(to_onnx(module), [x])
    assert result.shape == evaluate(module, [x])[0].shape


@pytest.mark.parametrize(("dtype", "zero_dtype"), [("uint8", "int32"), ("int8", "uint8"), ("int16", "int64")])
@pytest.mark.parametrize("is_constant", [True, False])
def test_zero_points_outside_of_the_stored_dtype_stay_as_they_are(dtype, zero_dtype, is_constant):
    zero = np.array({"uint8": -1, "int8": 200, "int16": 70000}[dtype], zero_dtype)
    zeros, scales = np.stack([zero, np.array(1, zero_dtype)]), np.float32([0.16, 0.5])
    x = np.random.default_rng(0).normal(0, 9, (2, 2, 5)).astype(np.float32)
    b = FunctionBuilder()
    given = Constant(zeros) if is_constant else b.input("zero", (2,), zero_dtype)
    stored = b.op("quantize", b.input("x", x.shape), Constant(scales), given, axis=1, dtype=dtype)
    module = IRModule({"main": b.function(stored, b.op("dequantize", stored, Constant(scales), given, axis=1))})
    inputs = [x] if is_constant else [zeros, x]
    for actual, wanted in zip(run(to_onnx(module), inputs), evaluate(module, inputs), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_the_tanh_form_of_gelu_has_the_digits_of_float64() -> None:
    x = np.linspace(-3, 3, 100)
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.gelu_tanh", b.input("x", x.shape, "float64")))})
    np.testing.assert_allclose(run(to_onnx(module), [x])[0], evaluate(module, [x])[0], rtol=1e-11)


def test_large_constants_may_stay_where_they_are() -> None:
    b, large, small = FunctionBuilder(), Constant(np.ones((16, 16), np.float32)), np.ones(16, np.float32)
    x = b.op("matmul", b.input("x", (2, 16)), large)
    external: dict[str, np.ndarray] = {}
    model = to_onnx(IRModule({"main": b.function(b.op("add", b.op("matmul", x, large), small))}), external)
    ((name, data),) = external.items()
    assert np.shares_memory(data, large.data)
    stored = {tensor.name: tensor.data_location for tensor in model.graph.initializer}
    assert sorted(stored.values()) == [onnx.TensorProto.DEFAULT, onnx.TensorProto.EXTERNAL]
    assert stored[name] == onnx.TensorProto.EXTERNAL
    assert model.ByteSize() < large.data.nbytes
