"""Models whose types hang on data: parts of them are run first, and the rest is compiled for what these give."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import kernelyard as ky
from kernelyard.driver.specialize import SpecializingExecutable
from kernelyard.errors import FrontendError, PerformanceWarning, UnsupportedOperatorError

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WEIGHTS = {"zero": np.array(0, np.float32), "first": np.array([0]), "none": np.array(0)}
Feeds = dict[str, np.ndarray]


def node(op: str, inputs: list[str], outputs: list[str] | None = None, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs or ["y"], **attrs)


def info(name: str, kind: int = FLOAT, shape: list[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def graph(nodes: list[onnx.NodeProto], outputs: list[str], inputs: list[onnx.ValueInfoProto]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "inner", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])


def model_of(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.ModelProto:
    """A model that does not say which shapes its results have."""
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in WEIGHTS.items()]
    whole = helper.make_graph(nodes, "main", inputs, [info(name) for name in outputs], weights)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def agree(model: onnx.ModelProto, programs: int, *feeds: Feeds) -> None:
    """Compile once, compare every feed with onnxruntime, and count the programs that this took."""
    with pytest.warns(PerformanceWarning, match="is compiled for each combination"):
        exe = ky.compile(model, backends=[])
    assert isinstance(exe, SpecializingExecutable)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds:
        for found, expected in zip(exe.run(feed).values(), session.run(None, feed), strict=True):
            assert np.asarray(found).shape == np.shape(expected)
            np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)
    assert exe.cache_info()["programs"].entries == programs


def rows(count: int, sign: int = 1) -> np.ndarray:
    return sign * np.abs(np.random.default_rng(3).standard_normal((count, 4), dtype=np.float32))


def choice(then: list[onnx.NodeProto], otherwise: list[onnx.NodeProto], result: str = "y") -> list[onnx.NodeProto]:
    """`result` is what a branch makes of `x`, taken by the sign of its sum."""
    return [
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Greater", ["total", "zero"], ["positive"]),
        node("If", ["positive"], [result], then_branch=graph(then, ["t"], []), else_branch=graph(otherwise, ["t"], [])),
    ]


def test_the_rank_of_a_result_that_data_decides() -> None:
    """The condition is computed first; the sizes stay open."""
    nodes = choice([node("Exp", ["x"], ["t"])], [node("Neg", ["total"], ["t"])])
    feeds = [{"x": rows(3)}, {"x": rows(3, -1)}, {"x": rows(5)}, {"x": rows(1, -1)}]
    agree(model_of(nodes, [info("x", FLOAT, ["n", 4])], ["y"]), 2, *feeds)


def test_sequences_of_different_ranks() -> None:
    nodes = [
        *choice(
            [node("SequenceConstruct", ["x", "x"], ["t"])], [node("SequenceConstruct", ["total"], ["t"])], result="z"
        ),
        node("SequenceAt", ["z", "none"], ["y"]),
    ]
    agree(model_of(nodes, [info("x", FLOAT, ["n", 4])], ["y"]), 2, {"x": rows(3)}, {"x": rows(2, -1)})


def looped(step: list[onnx.NodeProto], state: onnx.ValueInfoProto, start: str, turns: str) -> onnx.NodeProto:
    body = graph(
        [*step, node("Identity", ["go"], ["more"])],
        ["more", "next"],
        [info("i", INT64, []), info("go", BOOL, []), state],
    )
    return node("Loop", [turns, "", start], ["last"], body=body)


@pytest.mark.parametrize("is_computed", [False, True])
def test_a_loop_that_adds_an_axis_at_every_iteration(is_computed: bool) -> None:
    """The number of iterations is an input, or computed from data."""
    step = [node("Unsqueeze", ["state", "first"], ["next"])]
    nodes = [looped(step, info("state"), "x", "turns"), node("Neg", ["last"])]
    if not is_computed:
        inputs = [info("x", FLOAT, ["n", 4]), info("turns", INT64, [])]
        feeds = [{"x": rows(3), "turns": np.array(turns)} for turns in (2, 0, 2)]
        agree(model_of(nodes, inputs, ["y"]), 2, *feeds)
        return
    counted = [node("ReduceMax", ["x"], ["most"], keepdims=0), node("Cast", ["most"], ["turns"], to=INT64)]
    feeds = [{"x": np.full((n, 4), turns, np.float32)} for n, turns in ((1, 2), (3, 2), (3, 1))]
    agree(model_of([*counted, *nodes], [info("x", FLOAT, ["n", 4])], ["y"]), 2, *feeds)


def test_a_sequence_that_a_loop_over_an_open_length_fills() -> None:
    """Also of more elements than tensors would be unrolled for."""
    state = helper.make_tensor_sequence_value_info("state", FLOAT, None)
    step = [
        node("Gather", ["x", "i"], ["row"]),
        node("Exp", ["row"], ["made"]),
        node("SequenceInsert", ["state", "made"], ["next"]),
    ]
    nodes = [
        node("Shape", ["x"], ["length"], start=0, end=1),
        node("Squeeze", ["length"], ["turns"]),
        node("SequenceEmpty", [], ["start"]),
        looped(step, state, "start", "turns"),
        node("ConcatFromSequence", ["last"], ["y"], axis=0, new_axis=1),
    ]
    agree(model_of(nodes, [info("x", FLOAT, ["n", 4])], ["y"]), 2, {"x": rows(3)}, {"x": rows(70)})


@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
def test_index_vectors_of_open_length(op: str) -> None:
    """The rank of a result, or of the updates, follows from it."""
    x, i = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[1, 2], [0, 0]])
    more: Feeds = {"u": np.float32([7, 8])} if op == "ScatterND" else {}
    inputs = [info("x", FLOAT, [2, 3]), info("i", TensorProto.INT64, [2, "k"]), *(info(n, FLOAT, [2]) for n in more)]
    agree(model_of([node(op, ["x", "i", *more])], inputs, ["y"]), 1, {"x": x, "i": i, **more})


def test_filters_of_open_size_that_the_node_states() -> None:
    """Some size that is tried for all open ones does not fit: that is no reason to refuse the sizes that come."""
    inputs = [info("x", FLOAT, [1, 2, "h", "w"]), info("f", FLOAT, [4, 2, "kh", "kw"])]
    model = model_of([node("Conv", ["x", "f"], kernel_shape=[3, 2], pads=[1, 0, 1, 0])], inputs, ["y"])
    rng = np.random.default_rng(3)
    feed = {
        name: rng.standard_normal(shape, np.float32) for name, shape in {"x": (1, 2, 5, 6), "f": (4, 2, 3, 2)}.items()
    }
    agree(model, 1, feed, feed)


def test_a_tensor_of_the_graph_is_given_a_value() -> None:
    nodes = choice([node("Exp", ["x"], ["t"])], [node("Neg", ["total"], ["t"])])
    model = model_of(nodes, [info("x", FLOAT, ["n", 4])], ["y"])
    exe = ky.compile(model, backends=[], options={"onnx": {"values": {"positive": np.array(True)}}})
    np.testing.assert_allclose(np.asarray(exe.run({"x": rows(2)})["y"]), np.exp(rows(2)), rtol=1e-5)
    with pytest.raises(FrontendError, match=re.escape("'positiv'")):
        ky.compile(model, backends=[], options={"onnx": {"values": {"positiv": np.array(True)}}})


def test_what_is_wrong_with_a_model_is_not_hidden() -> None:
    """A branch that no input takes has an operator that there is not."""
    nodes = choice([node("Exp", ["x"], ["t"])], [node("NoSuchOperator", ["x"], ["t"])])
    model = model_of(nodes, [info("x", FLOAT, ["n", 4])], ["y"])
    with pytest.raises(UnsupportedOperatorError, match="NoSuchOperator"):
        ky.compile(model, backends=[])
