"""LSTM, GRU and RNN: one operator for each direction, compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import kernelyard as ky
from kernelyard.ir import Call

from .conftest import function_of

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OPERATORS = {"RNN": "nn.rnn", "GRU": "nn.gru", "LSTM": "nn.lstm"}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
# name: whether it takes alpha, and beta
ACTIVATIONS = {
    **dict.fromkeys(("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus"), (False, False)),
    **dict.fromkeys(("LeakyRelu", "Elu"), (True, False)),
    **dict.fromkeys(("HardSigmoid", "Affine", "ScaledTanh"), (True, True)),
}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def weights_of(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-0.5, 0.5, shape).astype(np.float32)


def layer(
    kind: str,
    size: int,
    hidden: int,
    *,
    steps: int | str = "t",
    batch: int | str = "n",
    direction: str = "forward",
    given_too: tuple[str, ...] = (),
    dtype: int = TensorProto.FLOAT,
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one layer; given_too: which optional operands it has beside the biases."""
    rng, count, rows = np.random.default_rng(0), DIRECTIONS[direction], GATES[kind] * hidden
    element = helper.tensor_dtype_to_np_dtype(dtype)
    weights = {
        "w": weights_of(rng, count, rows, size).astype(element),
        "r": (weights_of(rng, count, rows, hidden) * min(1, 4 / hidden)).astype(element),  # states do not explode
        "b": weights_of(rng, count, 2 * rows).astype(element),
        "h": weights_of(rng, count, 1, hidden).astype(element),
        "c": weights_of(rng, count, 1, hidden).astype(element),
        "p": weights_of(rng, count, 3 * hidden).astype(element),
    }
    names = ["b", "lengths", "h", *(["c", "p"] if kind == "LSTM" else [])]
    used = ["x", "w", "r", *(name if name == "b" or name in given_too else "" for name in names)]
    outputs = ["y", "y_h", *(["y_c"] if kind == "LSTM" else [])]
    node = helper.make_node(kind, used, outputs, hidden_size=hidden, direction=direction, **attrs)
    inputs = [helper.make_tensor_value_info("x", dtype, [steps, batch, size])]
    if "lengths" in given_too:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, [batch]))
    graph = helper.make_graph(
        [node],
        "layer",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(weights[name], name) for name in used if name in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def feed(steps: int, batch: int, size: int, lengths: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    x = np.random.default_rng(steps).standard_normal((steps, batch, size), np.float32)
    return {"x": x, "lengths": np.array(lengths, np.int32)} if lengths else {"x": x}


def agree(model: onnx.ModelProto, *feeds: dict[str, np.ndarray]) -> ky.Executable:
    exe = ky.compile(model, backends=[])
    assert not exe.vm_functions  # no loop of the program
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for each in feeds:
        found = exe.run(each)
        for output, wanted in zip(exe.outputs, session.run(None, each), strict=True):
            np.testing.assert_allclose(np.asarray(found[output.name]), wanted, rtol=1e-4, atol=1e-5)
    return exe


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_is_an_operator_for_each_direction(kind: str, direction: str) -> None:
    main = function_of(layer(kind, 3, 5, direction=direction))
    values = (binding.value for binding in main.bindings)
    names = [value.op_name for value in values if isinstance(value, Call)]
    assert names.count(OPERATORS[kind]) == DIRECTIONS[direction]
    assert names.count("matmul") == DIRECTIONS[direction]
    assert len(names) < 30


@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("kind", GATES)
def test_a_single_result_is_read(kind: str, place: int) -> None:
    """The states that a step hands to the next are there, whether or not they are results, too."""
    model = layer(kind, 3, 5, direction="bidirectional")
    output = model.graph.output[place]
    del model.graph.output[:]
    model.graph.output.append(output)
    agree(model, feed(6, 2, 3))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_layer(data: st.DataObject) -> None:
    kind, direction = data.draw(st.sampled_from([*GATES])), data.draw(st.sampled_from([*DIRECTIONS]))
    steps, batch, size, hidden = (data.draw(st.integers(1, most)) for most in (7, 4, 5, 40))
    attrs: dict[str, Any] = {}
    if data.draw(st.booleans()):
        count = FUNCTIONS[kind] * DIRECTIONS[direction]
        names = data.draw(st.lists(st.sampled_from([*ACTIVATIONS]), min_size=count, max_size=count))
        alphas, betas = (sum(ACTIVATIONS[name][k] for name in names) for k in (0, 1))
        attrs |= {"activations": names}
        attrs |= {"activation_alpha": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8][:alphas]} if alphas else {}
        attrs |= {"activation_beta": [0.5, 0.4, 0.3, 0.2, 0.6, 0.7][:betas]} if betas else {}
    if kind == "GRU":
        attrs["linear_before_reset"] = data.draw(st.integers(0, 1))
    optional = data.draw(st.sets(st.sampled_from(["lengths", *(["p"] if kind == "LSTM" else [])])))
    lengths = tuple(data.draw(st.integers(1, steps)) for _ in range(batch)) if "lengths" in optional else ()
    is_open = data.draw(st.booleans())
    sizes: dict[str, int | str] = {} if is_open else {"steps": steps, "batch": batch}
    model = layer(kind, size, hidden, direction=direction, given_too=tuple(optional), **sizes, **attrs)
    agree(model, feed(steps, batch, size, lengths))


@pytest.mark.parametrize("kind", GATES)
def test_one_program_serves_every_length(kind: str) -> None:
    agree(layer(kind, 4, 24, direction="bidirectional"), *(feed(n, 2, 4) for n in (1, 2, 17, 200)))


@pytest.mark.parametrize("kind", GATES)
def test_no_step_leaves_the_initial_state(kind: str) -> None:
    model = layer(kind, 4, 8, steps=0, batch=1, given_too=("h", "c") if kind == "LSTM" else ("h",))
    found = ky.compile(model, backends=[]).run(feed(0, 1, 4))
    (initial,) = (onnx.numpy_helper.to_array(each) for each in model.graph.initializer if each.name == "h")
    assert found["y"].shape == (0, 1, 1, 8)
    np.testing.assert_array_equal(found["y_h"].numpy(), initial)


@pytest.mark.parametrize("kind", GATES)
def test_initial_states(kind: str) -> None:
    given_too = ("h", "c") if kind == "LSTM" else ("h",)
    agree(layer(kind, 4, 8, batch=1, given_too=given_too, direction="bidirectional"), feed(3, 1, 4))


def test_a_clip_bounds_what_the_gates_are_computed_from() -> None:
    agree(layer("LSTM", 4, 8, clip=0.2), feed(6, 2, 4))


@pytest.mark.parametrize("given_too", [(), ("lengths", "p")], ids=["plain", "peepholes"])
def test_a_coupled_forget_gate_is_what_the_input_gate_leaves(given_too: tuple[str, ...]) -> None:
    model = layer("LSTM", 4, 8, direction="bidirectional", given_too=given_too, input_forget=1)
    agree(model, feed(6, 2, 4, (6, 3) if "lengths" in given_too else ()))


@pytest.mark.parametrize("kind", GATES)
def test_threads_give_the_same_result(kind: str) -> None:
    exe = ky.compile(layer(kind, 8, 160, steps=9, batch=6), backends=[])
    given_x = feed(9, 6, 8)
    found = []
    for threads in (1, 2):
        exe.threads = threads
        found.append(exe.run(given_x)["y"].numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", GATES)
def test_float16_is_computed_in_float32(kind: str) -> None:
    """onnxruntime has no such layer: the model in float32 says what comes out."""
    narrow = ky.compile(layer(kind, 4, 16, dtype=TensorProto.FLOAT16), backends=[])
    wide = ky.compile(layer(kind, 4, 16), backends=[])
    given_x = feed(20, 2, 4)
    wanted = wide.run(given_x)["y"].numpy()
    found = narrow.run({"x": given_x["x"].astype(np.float16)})["y"].numpy()
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("backends", [[], "auto"], ids=["native-cpu", "auto"])
def test_states_whose_sizes_have_names_of_their_own(kind: str, backends: list[str] | str) -> None:
    """As exporters name the axes of each input for itself."""
    model = layer(kind, 3, 4, batch="n", given_too=("h", "c") if kind == "LSTM" else ("h",))
    states = [each for each in model.graph.initializer if each.name in ("h", "c")]
    for each in states:
        model.graph.initializer.remove(each)
        axes = [1, f"batch_{each.name}", f"width_{each.name}"]
        model.graph.input.append(helper.make_tensor_value_info(each.name, TensorProto.FLOAT, axes))
    assert OPERATORS[kind] in [call.op_name for call in calls_of(model)]
    exe = ky.compile(model, backends=backends)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(4)
    for steps, batch in ((5, 2), (3, 6)):
        feeds = {"x": weights_of(rng, steps, batch, 3), **{each.name: weights_of(rng, 1, batch, 4) for each in states}}
        for found, expected in zip(exe.run(feeds).values(), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ky.errors.ShapeError):
        exe.run({**feeds, "h": weights_of(rng, 1, 5, 4)})


def calls_of(model: onnx.ModelProto) -> list[Call]:
    return [binding.value for binding in function_of(model).bindings if isinstance(binding.value, Call)]


# --- 8-bit weights ----------------------------------------------------------------------------------------------------
def quantized_layer(
    hidden: int, direction: str, dtype: type, *, per_column: bool, given_too: tuple[str, ...] = ()
) -> onnx.ModelProto:
    """A DynamicQuantizeLSTM over any number of sequences of any length, of 12 inputs."""
    rng, count, columns = np.random.default_rng(hidden), DIRECTIONS[direction], 4 * hidden
    parameters = (count, columns) if per_column else (count,)
    # Seven bits: without VNNI onnxruntime adds two products in 16 bits, and saturates.
    low, high = (64, 192) if dtype is np.uint8 else (-64, 64)
    weights: dict[str, np.ndarray] = {
        "w": rng.integers(low, high, (count, 12, columns)).astype(dtype),
        "r": rng.integers(low, high, (count, hidden, columns)).astype(dtype),
        "b": weights_of(rng, count, 2 * columns),
        "h": weights_of(rng, count, 1, hidden),
        "c": weights_of(rng, count, 1, hidden),
        "p": weights_of(rng, count, 3 * hidden),
        "ws": (rng.uniform(0.5, 1, parameters) / 256).astype(np.float32),
        "wz": np.full(parameters, 123 if dtype is np.uint8 else 0, dtype),
        "rs": (rng.uniform(0.5, 1, parameters) / (64 * hidden**0.5)).astype(np.float32),
        "rz": np.full(parameters, 125 if dtype is np.uint8 else 0, dtype),
    }
    optional = [name if name == "b" or name in given_too else "" for name in ("b", "lengths", "h", "c", "p")]
    used = ["x", "w", "r", *optional, "ws", "wz", "rs", "rz"]
    outputs = ["y", "y_h", "y_c"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", used, outputs, domain="com.microsoft", hidden_size=hidden, direction=direction
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "n", 12])]
    if "lengths" in given_too:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT32, ["n"]))
    initializers = [onnx.numpy_helper.from_array(weights[name], name) for name in used if name in weights]
    graph = helper.make_graph([node], "layer", inputs, [onnx.ValueInfoProto(name=n) for n in outputs], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("given_too", [(), ("h", "c"), ("lengths", "h", "c", "p")], ids=["plain", "states", "all"])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("hidden", "direction"), [(17, "forward"), (96, "reverse"), (40, "bidirectional")])
def test_states_are_quantized_as_onnxruntime_does(
    hidden: int, direction: str, dtype: type, per_column: bool, given_too: tuple[str, ...]
) -> None:
    model = quantized_layer(hidden, direction, dtype, per_column=per_column, given_too=given_too)
    names = [binding.value.op_name for binding in function_of(model).bindings if isinstance(binding.value, Call)]
    assert names.count("nn.dynamic_quantize_lstm") == DIRECTIONS[direction]
    exe = ky.compile(model, backends=[])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = feed(9, 1, 12, (9,) if "lengths" in given_too else ())
    for found, right in zip(exe.run(given).values(), session.run(None, given), strict=True):
        # Where a state lies between two of 256 numbers, rounding may take either.
        np.testing.assert_allclose(found.numpy(), right, atol=2e-3)
