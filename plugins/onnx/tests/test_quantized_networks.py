"""Networks that onnxruntime's own tools quantize: the numbers are onnxruntime's, and products stay products of integers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import kernelyard as ky
from kernelyard.errors import ModelFormatError
from kernelyard.ir import Call, Function, IRModule
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.transform.pipelines import get_pipeline

RNG = np.random.default_rng(5)
PRODUCTS = ("matmul", "nn.conv2d")


def network(text: str, *weights: tuple[str, tuple[int, ...]], **arrays: np.ndarray) -> onnx.ModelProto:
    """A model of random weights, and of arrays by name."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    for name, shape in weights:
        fan_in = max(int(np.prod(shape[1:] if len(shape) > 2 else shape[:1])), 1)
        array = (RNG.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    return model


NETWORKS = {
    "convolutions with a residual, pools and a linear layer": network(
        """net (float[n, 3, 16, 16] x) => (float[n, 5] y) {
            a = Conv<pads=[1, 1, 1, 1]>(x, w1, b1)  ra = Relu(a)
            p = MaxPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(ra)
            c = Conv<pads=[1, 1, 1, 1], group=8>(p, w2)  rc = Relu(c)
            d = Conv(rc, w3, b3)  s = Add(d, p)  rs = Relu(s)
            both = Concat<axis=1>(rs, p)  g = GlobalAveragePool(both)
            f = Flatten(g)  y = Gemm<transB=1>(f, w4, b4)
        }""",
        *(("w1", (8, 3, 3, 3)), ("b1", (8,)), ("w2", (8, 1, 3, 3)), ("w3", (8, 8, 1, 1)), ("b3", (8,))),
        *(("w4", (5, 16)), ("b4", (5,))),
    ),
    "attention": network(
        """net (float[2, 6, 16] x) => (float[2, 6, 16] y)
        <int64[4] heads = {0, 0, 4, 4}, int64[3] joined = {0, 0, 16}> {
            q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
            q4 = Reshape(q, heads)  k4 = Reshape(k, heads)  v4 = Reshape(v, heads)
            qt = Transpose<perm=[0, 2, 1, 3]>(q4)  kt = Transpose<perm=[0, 2, 3, 1]>(k4)
            vt = Transpose<perm=[0, 2, 1, 3]>(v4)
            scores = MatMul(qt, kt)  weights = Softmax<axis=-1>(scores)
            mixed = MatMul(weights, vt)  back = Transpose<perm=[0, 2, 1, 3]>(mixed)
            whole = Reshape(back, joined)  out = MatMul(whole, wo)  y = Add(out, x)
        }""",
        *((name, (16, 16)) for name in ("wq", "wk", "wv", "wo")),
    ),
}


class Feeds(CalibrationDataReader):
    """Random batches to calibrate with."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._left = iter([{"x": RNG.standard_normal(shape).astype(np.float32)} for _ in range(8)])

    def get_next(self) -> dict[str, np.ndarray]:
        return next(self._left, None)  # pyright: ignore[reportReturnType]


def shape_of(model: onnx.ModelProto) -> tuple[int, ...]:
    return tuple(dim.dim_value or 2 for dim in model.graph.input[0].type.tensor_type.shape.dim)


def quantized(name: str, form: str, folder: Path, per_channel: bool = True) -> onnx.ModelProto:
    """A network as onnxruntime writes it: "QDQ", "QOperator" or "dynamic"."""
    path = folder / "quantized.onnx"
    model = onnx.load_from_string(NETWORKS[name].SerializeToString())  # which the tool writes to
    if form == "dynamic":  # of 7 bits: without VNNI onnxruntime cuts sums of larger products off
        quantize_dynamic(model, path, per_channel=per_channel, reduce_range=True)
    else:
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        options = {
            "quant_format": QuantFormat[form],
            "per_channel": per_channel,
            "extra_options": {"ReduceRange": True},
        }
        quantize_static(model, path, Feeds(shape_of(model)), reduce_range=True, **types, **options)
    return onnx.load(path)


def last_scale(model: onnx.ModelProto) -> float:
    """The unit of the result, which is dequantized."""
    made_by = {output: node for node in model.graph.node for output in node.output}
    node = made_by[model.graph.output[0].name]
    assert node.op_type == "DequantizeLinear"
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    return float(numpy_helper.to_array(constants[node.input[1]]))


def results(model: onnx.ModelProto, backends: Sequence[str] | str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ours and onnxruntime's."""
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return ky.compile(model, backends=backends)(x).numpy(), session.run(None, {"x": x})[0]


@pytest.mark.parametrize("backends", ["auto", []], ids=["auto", "generated"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_onnxruntimes_up_to_one_unit(name, form, per_channel, backends, tmp_path):
    model = quantized(name, form, tmp_path, per_channel)
    ours, theirs = results(model, backends, RNG.standard_normal(shape_of(model)).astype(np.float32))
    apart = np.abs(ours - theirs) / last_scale(model)
    assert (apart < 1.5).mean() >= 0.999
    assert (apart < 0.5).mean() > 0.8


@pytest.mark.parametrize("name", NETWORKS)
def test_dynamic_results_are_onnxruntimes(name, tmp_path):
    model = quantized(name, "dynamic", tmp_path)
    ours, theirs = results(model, "auto", RNG.standard_normal(shape_of(model)).astype(np.float32))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=0.02 * np.abs(theirs).max())


# --- what backends are offered ----------------------------------------------------------------------------------------
def offered(model: onnx.ModelProto) -> Function:
    module = get_manager().get("onnx", "frontend").import_model(model, {})
    for pipeline in ("import", "simplify", "quantized"):
        module = get_pipeline(pipeline)(module)
    assert isinstance(module, IRModule)
    return module.entry_functions()["main"]


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
@pytest.mark.parametrize("name", NETWORKS)
def test_products_are_of_what_is_dequantized(name, form, tmp_path):
    function = offered(quantized(name, form, tmp_path))
    values = {binding.var: binding.value for binding in function.bindings}
    products = [v for v in values.values() if isinstance(v, Call) and v.op_name in PRODUCTS]
    expected = {"attention": 6, "convolutions with a residual, pools and a linear layer": 4}[name]
    if form == "dynamic" and name == "attention":
        expected = 4  # products of two results stay as they are
        products = [v for v in products if v.args[1].tensor_type.rank == 2]
    assert len(products) == expected
    for product in products:
        assert [values[arg].op_name for arg in product.args] == ["dequantize", "dequantize"]  # pyright: ignore
        assert {values[arg].args[0].tensor_type.dtype for arg in product.args} <= {"int8", "uint8"}  # pyright: ignore


def test_integers_are_moved_and_pooled(tmp_path):
    function = offered(quantized("convolutions with a residual, pools and a linear layer", "QDQ", tmp_path))
    calls = [binding.value for binding in function.bindings if isinstance(binding.value, Call)]
    assert {c.tensor_type.dtype for c in calls if c.op_name in ("nn.max_pool2d", "reshape")} <= {"uint8", "float32"}
    assert [c.tensor_type.dtype for c in calls if c.op_name == "nn.max_pool2d"] == ["uint8"]
    function = offered(quantized("attention", "QDQ", tmp_path))
    calls = [binding.value for binding in function.bindings if isinstance(binding.value, Call)]
    assert {c.tensor_type.dtype for c in calls if c.op_name == "permute_dims"} == {"uint8"}


# --- integer convolutions ---------------------------------------------------------------------------------------------
def integer_convolution(groups: int, zero: int, has_bias: bool) -> onnx.ModelProto:
    """A network as older tools write dynamic quantization: the bias is brought into units of the data's scale."""
    text = """net (float[1, 8, 12, w] x) => (float[1, 16, h, v] y) <int64[4] along = {1, 16, 1, 1}> {
        q, scale, point = DynamicQuantizeLinear(x)
        both = Mul(scale, unit)
        total = ConvInteger<pads=[1, 0, 1, 2], strides=[2, 1], group=GROUPS>(q, codes, point, zero)
        BIAS
        y = Mul(real, both)
    }"""
    biased = """parts = Div(bias, both)  whole = Floor(parts)  numbers = Cast<to=6>(whole)
        laid = Reshape(numbers, along)  sums = Add(total, laid)  real = Cast<to=1>(sums)"""
    plain = "real = Cast<to=1>(total)"
    text = text.replace("BIAS", biased if has_bias else plain).replace("GROUPS", str(groups))
    codes = RNG.integers(0, 256, (16, 8 // groups, 3, 3)).astype(np.uint8)
    numbers = {"codes": codes, "zero": np.array(zero, np.uint8), "unit": np.array(0.02, np.float32)}
    return network(text, *([("bias", (16,))] if has_bias else []), **numbers)


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("zero", [0, 119, 128])
def test_integer_convolutions_are_products_of_integers(groups, zero, has_bias):
    model = integer_convolution(groups, zero, has_bias)
    calls = {b.var: b.value for b in offered(model).bindings if isinstance(b.value, Call)}
    (product,) = (call for call in calls.values() if call.op_name == "nn.conv2d")
    assert [calls[arg].op_name for arg in product.args] == ["dequantize", "dequantize"]  # pyright: ignore
    ours, theirs = results(model, "auto", RNG.standard_normal((1, 8, 12, 11)).astype(np.float32))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


ANOTHER_ZERO_POINT = {
    "of another integer": ("DequantizeLinear", {}, np.int8, np.uint8, "int8"),
    "by blocks": ("DequantizeLinear", {"block_size": 2, "axis": 0}, np.int8, np.uint8, "int8"),
    "than the result is stated to have": ("QuantizeLinear", {"output_dtype": 3}, np.float32, np.uint8, "int8"),
    "that nothing is stored in": ("QuantizeLinear", {}, np.float32, np.float32, "int8 or uint8 or"),
}


@pytest.mark.parametrize("label", ANOTHER_ZERO_POINT)
def test_a_zero_point_of_another_element_type_is_refused(label):
    op, attributes, dtype, of_zero, expected = ANOTHER_ZERO_POINT[label]
    shape = (2,) if attributes.get("block_size") else ()
    scale, zero = (numpy_helper.from_array(np.ones(shape, t), n) for n, t in (("s", np.float32), ("z", of_zero)))
    x = onnx.helper.make_tensor_value_info("x", onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [4])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.UNDEFINED, None)
    node = onnx.helper.make_node(op, ["x", "s", "z"], ["y"], **attributes)
    graph = onnx.helper.make_graph([node], "g", [x], [y], [scale, zero])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(ModelFormatError, match="zero point has another element type") as raised:
        ky.compile(model)
    assert raised.value.found == np.dtype(of_zero).name
    assert raised.value.expected.startswith(expected)
