"""kernelyard.quantize: products are taken as products of integers, and the numbers are close to float32's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from byte_products import HAS_BYTE_PRODUCTS, NO_VNNI, needs_byte_products
from quantized_models import attention, convolutions, feeds_of, linear

import kernelyard as ky
from kernelyard.errors import OptionError
from kernelyard.ir import Call, Constant, Function, FunctionBuilder, IRModule
from kernelyard.plugins.api import INT8_WEIGHTS, SCHEMES, STATIC, QuantizationScheme
from kernelyard.testing import assert_offloaded
from kernelyard_quantize import CalibrationError, QuantizationError, QuantizedModule
from kernelyard_quantize.layers import find_layers, find_quantized_values

MODELS = {"convolutions": convolutions, "attention": attention, "linear": linear}
OF_INTEGERS = [name for name, scheme in SCHEMES.items() if scheme.kind != "weights"]


def calls(module: IRModule, *names: str) -> list[Call]:
    function = module["main"]
    assert isinstance(function, Function)
    values = [binding.value for binding in function.bindings]
    return [value for value in values if isinstance(value, Call) and value.op_name in names]


def results(model: object, feed: dict[str, np.ndarray], backends: Sequence[str] | str = "auto") -> list[np.ndarray]:
    return [tensor.numpy() for tensor in ky.compile(model, backends=backends).run(feed).values()]


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.sqrt(np.square(ours - theirs).mean() / np.square(theirs).mean()))


# --- what runs --------------------------------------------------------------------------------------------------------
@needs_byte_products
@pytest.mark.parametrize("scheme", OF_INTEGERS)
@pytest.mark.parametrize("name", MODELS)
def test_products_are_taken_as_products_of_integers(name: str, scheme: str) -> None:
    module = MODELS[name]()
    quantized = ky.quantize(module, feeds_of(module), scheme, measure=False)
    layers = len(quantized.quantization.quantized)
    assert layers == len(find_layers(module["main"], STATIC))  # pyright: ignore[reportArgumentType]
    report = ky.explain(quantized, backends=["dnnl"])
    taken = [region for region in report.regions if region.pattern.startswith("dnnl.quantized")]
    assert len(taken) == layers
    assert_offloaded(report, "dnnl", taken[0].pattern)


@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_each_value_is_named_by_the_node_that_it_is_made_for(scheme: str) -> None:
    b = FunctionBuilder()
    value = b.input("x", (4, 16))
    for number in range(3):
        weight = np.random.default_rng(number).normal(size=(16, 16)).astype(np.float32)
        value = b.op("matmul", value, weight, origin=f"node 'fc{number}' (MatMul)")
        value = b.op("nn.relu", value, origin=f"node 'relu{number}' (Relu)")
    module = IRModule({"main": b.function(value)})
    quantized = ky.quantize(module, feeds_of(module), scheme, measure=False)
    report = ky.explain(quantized, backends=["dnnl"])
    assert_offloaded(report, "dnnl")
    nodes = [(region.node, region.ops) for region in report.regions]
    assert len(set(nodes)) == len(nodes), nodes
    assert not [node for node, _ in nodes if not node.startswith(("node '", "%x"))], nodes


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", MODELS)
def test_results_are_close_to_float32(name: str, scheme: str) -> None:
    module = MODELS[name]()
    feeds = feeds_of(module)
    quantized = ky.quantize(module, feeds, scheme)
    (exact,), (ours,) = results(module, feeds[0]), results(quantized, feeds[0])
    error = relative_error(ours, exact)
    assert 0 < error < (0.1 if SCHEMES[scheme].weight_bits == 4 else 0.04)
    assert quantized.quantization.error == pytest.approx(error, rel=1.0)
    assert all(layer.sqnr > 15 for layer in quantized.quantization.layers)


@pytest.mark.parametrize("observer", ["minmax", "percentile", "entropy"])
def test_observers(observer: str) -> None:
    module = convolutions()
    feeds = feeds_of(module)
    quantized = ky.quantize(module, feeds, "static", observer=observer)  # pyright: ignore[reportArgumentType]
    assert relative_error(results(quantized, feeds[0])[0], results(module, feeds[0])[0]) < 0.12


def test_a_list_and_a_function_of_feeds_are_the_same() -> None:
    module = convolutions()
    feeds = feeds_of(module)
    one, other = (ky.quantize(module, data, "static", measure=False) for data in (feeds, lambda: iter(feeds)))
    assert str(one) == str(other)


# --- what is quantized ------------------------------------------------------------------------------------------------
def test_activations_and_pools_are_done_on_what_is_stored() -> None:
    quantized = ky.quantize(convolutions(), feeds_of(convolutions()), "static", measure=False)
    (pool,) = calls(quantized, "nn.max_pool2d")
    values = {b.var: b.value for b in quantized["main"].bindings}  # pyright: ignore[reportAttributeAccessIssue]
    assert values[pool.args[0]].op_name == "dequantize"  # pyright: ignore
    after_relu = [call for call in calls(quantized, "quantize") if values.get(call.args[0]) is not None]
    assert all(int(call.args[2].data) == 0 for call in after_relu if values[call.args[0]].op_name == "nn.relu")  # pyright: ignore


def test_biases_are_multiples_of_the_unit_of_their_sums() -> None:
    quantized = ky.quantize(convolutions(), feeds_of(convolutions()), "static", measure=False)
    values = {b.var: b.value for b in quantized["main"].bindings}  # pyright: ignore[reportAttributeAccessIssue]
    sums = [call for call in calls(quantized, "add") if isinstance(call.args[1], Constant)]
    assert len(sums) == 2
    for call in sums:
        data, weight = (values[arg] for arg in values[call.args[0]].args)  # pyright: ignore
        data = values[data.args[0]] if data.op_name == "nn.max_pool2d" else data  # pyright: ignore
        unit = data.args[1].data * weight.args[1].data  # pyright: ignore
        codes = call.args[1].data.reshape(-1) / unit  # pyright: ignore[reportAttributeAccessIssue]
        np.testing.assert_allclose(codes, np.rint(codes), rtol=1e-6, atol=1e-3)


def test_operands_of_concat_share_a_scale() -> None:
    builder = FunctionBuilder()
    x, w = builder.input("x", (1, 4, 4, 4)), np.ones((2, 8, 1, 1), np.float32)
    pair = [builder.op("nn.relu", x), builder.op("sigmoid", x)]
    function = builder.function(builder.op("nn.conv2d", builder.op("concat", *pair, axis=1), w))
    values = find_quantized_values(function, find_layers(function, STATIC), ())
    assert values == {each: frozenset(pair) for each in pair}


def test_other_operators_are_stored_for_devices_that_compute_in_integers_alone() -> None:
    scheme = QuantizationScheme("npu", "static", "int8", symmetric=True, operators=("add", "mean"), per_channel=False)
    module = convolutions()
    quantized = ky.quantize(module, feeds_of(module), scheme, measure=False)
    values = {b.var: b.value for b in quantized["main"].bindings}  # pyright: ignore[reportAttributeAccessIssue]
    (mean,) = calls(quantized, "mean")
    assert values[mean.args[0]].op_name == "dequantize"  # pyright: ignore
    stored = calls(quantized, "quantize")
    assert {call.tensor_type.dtype for call in stored} == {"int8"}
    assert not any(call.args[2].data.any() for call in stored)  # pyright: ignore[reportAttributeAccessIssue]
    weights = [call for call in calls(quantized, "dequantize") if isinstance(call.args[0], Constant)]
    assert all(call.args[1].tensor_type.rank == 0 for call in weights)


def test_a_bias_stays_with_its_layer_where_other_sums_are_stored() -> None:
    builder, weight = FunctionBuilder(), np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)
    x = builder.input("x", (1, 4, 5, 5))
    layer = builder.op("nn.conv2d", x, weight)
    biased = builder.op("add", layer, np.ones((4, 1, 1), np.float32))
    gate = builder.op("sigmoid", biased)
    function = builder.function(builder.op("add", biased, gate))
    assert set(find_quantized_values(function, find_layers(function, STATIC), ("add",))) == {x, biased, gate}


def test_layers_can_be_kept() -> None:
    module = convolutions()
    first, *_ = ky.quantize(module, feeds_of(module), "static", measure=False).quantization.quantized
    quantized = ky.quantize(module, feeds_of(module), "static", keep=[first], measure=False)
    assert first not in quantized.quantization.quantized
    with pytest.raises(QuantizationError, match="no layer 'conv_77'"):
        ky.quantize(module, feeds_of(module), "static", keep=["conv_77"])


# --- errors by layer --------------------------------------------------------------------------------------------------
def test_max_error_keeps_as_few_of_the_worst_layers_as_it_takes() -> None:
    module = convolutions()
    feeds = feeds_of(module)
    whole = ky.quantize(module, feeds, "static").quantization
    assert whole.error is not None
    mixed = ky.quantize(module, feeds, "static", max_error=whole.error * 0.9).quantization
    assert mixed.error is not None
    assert mixed.error <= whole.error * 0.9
    assert 0 < len(mixed.kept) < len(whole.layers)
    worst = sorted(mixed.layers, key=lambda layer: layer.channel_sqnr)[: len(mixed.kept)]
    assert {layer.name for layer in worst} == set(mixed.kept)
    assert [layer.name for layer in mixed.layers if not layer.quantized] == [
        n for n in whole.quantized if n in mixed.kept
    ]


def test_an_error_that_no_layer_may_make_keeps_all() -> None:
    module = linear()
    report = ky.quantize(module, feeds_of(module), "static", max_error=1e-9).quantization
    assert (report.quantized, report.error) == ((), 0.0)


def test_error_feedback_makes_less_error_than_the_nearest_integers() -> None:
    module, rng = linear(256, 64), np.random.default_rng(0)
    mixing = rng.standard_normal((8, 256)).astype(np.float32)  # data of 8 dimensions: errors can cancel
    feeds = [{"x": rng.standard_normal((32, 8)).astype(np.float32) @ mixing} for _ in range(4)]
    exact = results(module, feeds[0])[0]
    nearest, fed_back = (ky.quantize(module, data, "int4_weights") for data in (None, feeds))
    errors = [relative_error(results(each, feeds[0])[0], exact) for each in (nearest, fed_back)]
    assert errors[1] < errors[0] / 2


# --- saving -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_runs_what_is_saved_and_agrees(name: str, scheme: str, tmp_path: Path) -> None:
    module = MODELS[name]()
    feeds = feeds_of(module)
    quantized = ky.quantize(module, feeds, scheme, measure=False)
    quantized.save(tmp_path / "quantized.onnx")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(tmp_path / "quantized.onnx", options, providers=["CPUExecutionProvider"])
    (ours,), (theirs,) = results(quantized, feeds[0]), session.run(None, feeds[0])
    again = results(tmp_path / "quantized.onnx", feeds[0])[0]
    quantum = np.abs(ours).max() / 255
    assert (np.abs(ours - again) <= quantum).mean() >= 0.999
    if scheme in OF_INTEGERS and not HAS_BYTE_PRODUCTS:
        pytest.skip(NO_VNNI)
    assert (np.abs(ours - theirs) <= quantum).mean() >= 0.999


def test_convolutions_are_saved_as_onnxruntime_fuses_them(tmp_path: Path) -> None:
    module = convolutions()
    ky.quantize(module, feeds_of(module), "static", measure=False).save(tmp_path / "quantized.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(tmp_path / "quantized.onnx", options, providers=["CPUExecutionProvider"])
    nodes = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert nodes.count("QLinearConv") >= 1


# --- schemes ----------------------------------------------------------------------------------------------------------
def test_auto_takes_what_a_backend_runs() -> None:
    module = linear()
    feeds = feeds_of(module)

    def chosen(calibration: object, backends: Sequence[str]) -> str:
        return ky.quantize(module, calibration, backends=backends, measure=False).quantization.scheme.name

    assert chosen(feeds, ["dnnl"]) == "static"
    assert chosen(None, ["dnnl"]) == "dynamic"  # the first that needs no data
    assert chosen(feeds, []) == INT8_WEIGHTS.name  # nobody says anything


# --- bad input --------------------------------------------------------------------------------------------------------
BAD = {
    "none": (None, "static", QuantizationError, "needs calibration data", "KY700"),
    "empty": ([], "static", CalibrationError, "there is no calibration data", "KY701"),
    "nan": ([np.full((8, 64), np.nan, np.float32)], "static", CalibrationError, "NaN", "KY701"),
    "infinite": ([np.full((8, 64), np.inf, np.float32)], "static", CalibrationError, "infinite", "KY701"),
    "names": ([{"y": np.ones((8, 64), np.float32)}], "static", CalibrationError, "other names", "KY701"),
    "iterator": (iter([]), "static", CalibrationError, "several times", "KY701"),
    "number": (5, "static", CalibrationError, "no calibration data", "KY701"),
    "scheme": ([np.ones((8, 64), np.float32)], "statik", QuantizationError, "no quantization scheme 'statik'", "KY700"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_a_code(name: str) -> None:
    calibration, scheme, error, message, code = BAD[name]
    with pytest.raises(error, match=message) as caught:
        ky.quantize(linear(), calibration, scheme)
    assert caught.value.code == code


def test_an_unknown_observer_and_a_bad_max_error_are_refused() -> None:
    module = linear()
    with pytest.raises(OptionError, match="observer"):
        ky.quantize(module, feeds_of(module), "static", observer="median")  # pyright: ignore[reportArgumentType]
    for max_error, feeds in ((0.0, feeds_of(module)), (0.1, None)):
        with pytest.raises(OptionError, match="max_error"):
            ky.quantize(module, feeds, "dynamic", max_error=max_error)


def test_a_value_that_overflows_names_itself() -> None:
    module = linear()
    with pytest.raises(CalibrationError, match="NaN or infinite") as caught:
        ky.quantize(module, [np.full((8, 64), 3e38, np.float32)], "static", measure=False)
    assert "%" in str(caught.value.where)


def test_a_model_without_products_is_refused() -> None:
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2,))))})
    with pytest.raises(QuantizationError, match="nothing to quantize"):
        ky.quantize(module, [np.ones(2, np.float32)], "static")


def test_the_result_is_a_module() -> None:
    module = linear()
    quantized = ky.quantize(module, feeds_of(module), "static")
    assert isinstance(quantized, QuantizedModule)
    assert isinstance(quantized, IRModule)
    assert "SQNR" in str(quantized.quantization)
    assert quantized.quantization.to_json()["scheme"] == "static"
