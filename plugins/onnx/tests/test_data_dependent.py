"""Results whose sizes data decides: models compiled, run, and compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import kernelyard as ky


def node(op: str, inputs: list[str], outputs: list[str] | None = None, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs or ["y"], **attrs)


def agree(
    nodes: list[onnx.NodeProto],
    *feeds: dict[str, np.ndarray],
    outputs: tuple[str, ...] = ("y",),
    shapes: dict[str, list[int | str]] | None = None,
    weights: dict[str, np.ndarray] | None = None,
) -> ky.Executable:
    """Compile once, and compare every feed with onnxruntime."""
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), (shapes or {}).get(name, list(array.shape))
        )
        for name, array in feeds[0].items()
    ]
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", infos, results, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    exe = ky.compile(model, backends=[])
    for feed in feeds:
        found = exe.run(feed)
        for name, expected in zip(outputs, session.run(None, feed), strict=True):
            result = np.asarray(found[name])
            assert (result.shape, result.dtype) == (np.shape(expected), expected.dtype)
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    return exe


def rng(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_nonzero_and_what_follows_from_it() -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("NonZero", ["r"], ["at"]),
        node("Transpose", ["at"], ["rows"]),
        node("GatherND", ["r", "rows"], ["kept"]),
        node("Exp", ["kept"], ["y"]),
        node("Shape", ["kept"], ["count"]),
    ]
    x = rng(3, 4)
    agree(nodes, {"x": x}, {"x": -x}, {"x": -np.abs(x)}, outputs=("y", "count", "at"))


def test_sizes_that_several_results_make_up_together() -> None:
    """The rest of the program returns sizes `k + m`, of which its caller knows neither."""
    names = ("x", "y", "z")
    nodes = [node("NonZero", [name], [f"at_{name}"]) for name in names]
    nodes += [node("Concat", [f"at_{name}" for name in names], ["all"], axis=1), node("Shape", ["all"], ["count"])]
    nodes += [node("Shape", [f"at_{name}"], [f"count_{name}"]) for name in names]
    outputs = ("all", "count", *(f"count_{name}" for name in names))
    feeds = [{name: np.maximum(rng(size), 0) for name in names} for size in (7, 3, 1)]
    agree(nodes, *feeds, outputs=outputs, shapes={name: [f"size_{name}"] for name in names})


def test_compress() -> None:
    condition = np.array([True, False, True, False])
    feeds = [{"x": rng(3, 4), "c": c} for c in (condition, ~condition, condition & False)]
    agree([node("Compress", ["x", "c"], axis=1)], *feeds)
    feeds = [{"x": rng(2, 2), "c": c} for c in (condition, ~condition)]
    agree([node("Compress", ["x", "c"])], *feeds)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_largest_along_an_axis_of_any_size(axis: int) -> None:
    """How many is given when it runs, or the smaller of a number and the size."""
    shapes: dict[str, list[int | str]] = {"x": ["n", "m"]}
    feeds = [{"x": rng(5, 6), "k": ints(k)} for k in (3, 5, 1, 0)]
    agree([node("TopK", ["x", "k"], ["y", "at"], axis=axis)], *feeds, outputs=("y", "at"), shapes=shapes)
    nodes = [
        node("Shape", ["x"], ["size"], start=axis, end=axis + 1),
        node("Min", ["size", "most"], ["k"]),
        node("TopK", ["x", "k"], ["y", "at"], axis=axis, largest=0),
    ]
    given = {"outputs": ("y", "at"), "shapes": shapes, "weights": {"most": ints(4)}}
    agree(nodes, {"x": rng(7, 9)}, {"x": rng(3, 2)}, {"x": rng(1, 1)}, **given)


def test_the_largest_of_what_is_found() -> None:
    nodes = [
        node("NonZero", ["x"], ["at"]),
        node("Transpose", ["at"], ["rows"]),
        node("GatherND", ["x", "rows"], ["kept"]),
        node("Shape", ["kept"], ["count"]),
        node("Min", ["count", "most"], ["k"]),
        node("TopK", ["kept", "k"], ["y", "first"], axis=0),
    ]
    feeds = [{"x": np.maximum(rng(n, 4), 0)} for n in (5, 2, 1)]
    feeds.append({"x": np.zeros((2, 4), np.float32)})
    agree(nodes, *feeds, outputs=("y", "first"), shapes={"x": ["n", 4]}, weights={"most": ints(4)})


@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique(ordered: int, axis: int | None) -> None:
    attrs = {} if axis is None else {"axis": axis}
    feeds = [{"x": np.random.default_rng(n).integers(0, high, (4, 3))} for n, high in ((1, 2), (2, 9), (3, 1))]
    agree(
        [node("Unique", ["x"], ["y", "first", "inverse", "counts"], sorted=ordered, **attrs)],
        *feeds,
        outputs=("y", "first", "inverse", "counts"),
    )


def test_non_max_suppression() -> None:
    corners = np.random.default_rng(5).random((2, 12, 2), dtype=np.float32)
    boxes = np.concatenate([corners, corners + 0.4], -1)
    scores = np.random.default_rng(6).random((2, 3, 12), dtype=np.float32)
    limits = {"most": ints(4), "iou": np.array([0.3], np.float32), "least": np.array([0.2], np.float32)}
    given = ["boxes", "scores", "most", "iou", "least"]
    agree([node("NonMaxSuppression", given)], {"boxes": boxes, "scores": scores, **limits})
    nodes = [
        node("NonMaxSuppression", given[:4], ["kept"]),
        node("Gather", ["kept", "last"], ["which"], axis=1),
        node("Shape", ["kept"], ["n"]),
    ]
    agree(
        nodes,
        {"boxes": boxes, "scores": scores, "most": ints(3)},
        {"boxes": boxes, "scores": scores, "most": ints(0)},
        outputs=("which", "n"),
        weights={"iou": np.array([0.5], np.float32), "last": np.array(2)},
    )


@pytest.mark.parametrize("shape", [[4, 6], [2, -1], [0, 3, -1], [-1]])
def test_reshape_by_data(shape: list[int]) -> None:
    x = rng(4, 6)
    agree([node("Reshape", ["x", "s"])], {"x": x, "s": ints(*shape)})


def test_shapes_by_data() -> None:
    agree([node("Expand", ["x", "s"])], {"x": rng(3, 1), "s": ints(3, 4)}, {"x": rng(3, 1), "s": ints(1, 7)})
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [2.5])
    agree([node("ConstantOfShape", ["s"], value=value)], {"s": ints(3, 4)}, {"s": ints(0, 7)})
    agree([node("Tile", ["x", "r"])], {"x": rng(2, 3), "r": ints(2, 1)}, {"x": rng(2, 3), "r": ints(1, 4)})
    agree([node("Pad", ["x", "p"])], {"x": rng(2, 3), "p": ints(1, 0, 0, 2)}, {"x": rng(2, 3), "p": ints(0, 0, 0, 0)})


@pytest.mark.parametrize("steps", [(1, 1), (-1, 2), (2, -1)])
def test_slices_by_data(steps: tuple[int, int]) -> None:
    bounds = [((0, 1), (3, 5)), ((-2, -1), (9, 2)), ((3, 4), (-9, -9)), ((1, 3), (1, 0)), ((9, -7), (0, 9))]
    feeds = [{"x": rng(4, 5), "b": ints(*begin), "e": ints(*end)} for begin, end in bounds]
    agree(
        [node("Slice", ["x", "b", "e", "axes", "steps"])], *feeds, weights={"axes": ints(1, 0), "steps": ints(*steps)}
    )


def test_ranges_by_data() -> None:
    scalars = [(0, 5, 1), (3, -4, -2), (2, 2, 1), (5, 0, 1)]
    feeds = [dict(zip("abc", map(np.int64, each), strict=True)) for each in scalars]
    agree([node("Range", ["a", "b", "c"])], *({k: np.asarray(v) for k, v in feed.items()} for feed in feeds))
    feeds = [dict(zip("abc", map(np.float32, each), strict=True)) for each in ((0, 1, 0.25), (1, -1, -0.5))]
    agree([node("Range", ["a", "b", "c"])], *({k: np.asarray(v) for k, v in feed.items()} for feed in feeds))


def test_the_best_by_data() -> None:
    feeds = [{"x": rng(3, 6), "k": ints(k)} for k in (2, 6, 1)]
    agree([node("TopK", ["x", "k"], ["y", "i"])], *feeds, outputs=("y", "i"))


def test_a_size_that_cannot_be_is_an_error_of_the_run() -> None:
    exe = agree([node("Expand", ["x", "s"])], {"x": rng(3, 1), "s": ints(3, 4)})
    with pytest.raises(ky.errors.KernelyardError):
        exe.run({"x": rng(3, 1), "s": ints(2, 4)})
    with pytest.raises(ky.errors.KernelyardError, match="negative"):
        exe.run({"x": rng(3, 1), "s": ints(3, -4)})


def test_data_decides_again_and_again() -> None:
    """The found elements are reshaped by numbers that come from data, too."""
    nodes = [
        node("NonZero", ["x"], ["at"]),
        node("Gather", ["x", "first"], ["pick"], axis=0),
        node("Concat", ["minus", "two"], ["s"], axis=0),
        node("Reshape", ["at", "s"], ["pairs"]),
        node("Cast", ["pick"], ["k"], to=TensorProto.INT64),
        node("Range", ["zero", "k", "one"], ["steps"]),
        node("Shape", ["steps"], ["n"]),
        node("Shape", ["pairs"], ["m"]),
    ]
    weights = {"first": np.array(0), "minus": ints(-1), "two": ints(2), "zero": np.array(0), "one": np.array(1)}
    feeds = [{"x": np.array(x, np.float32)} for x in ([3, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0])]
    agree(nodes, *feeds, outputs=("steps", "pairs", "n", "m"), weights=weights)


def test_numbers_are_quantized_exactly_where_data_decides_the_scale() -> None:
    """With all backends: 178.5 is rounded to even, as onnxruntime divides; a product with the reciprocal gives 178."""
    x = np.array([0, 2, -3, -2.5, 1.34, 0.5], np.float32)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    results = [onnx.ValueInfoProto(name=name) for name in ("y", "scale", "zero")]
    graph = helper.make_graph([node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])], "g", [info], results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for found, expected in zip(ky.compile(model).run({"x": x}).values(), session.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(np.asarray(found), expected)


def test_half_precision_scales_are_left_to_kernels() -> None:
    names, half, byte = ("a", "as", "az", "b", "bs", "bz", "ys", "yz"), TensorProto.FLOAT16, TensorProto.UINT8
    shapes = {"a": [2, 4], "b": [4, 3]}
    infos = [helper.make_tensor_value_info(n, half if n.endswith("s") else byte, shapes.get(n, [1])) for n in names]
    results = [helper.make_tensor_value_info("y", byte, [2, 3])]
    graph = helper.make_graph([node("QLinearMatMul", list(names))], "g", infos, results)
    exe = ky.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    feeds = {n: np.zeros(shapes.get(n, [1]), np.uint8) for n in names}
    feeds |= {"a": np.full((2, 4), 3, np.uint8), "b": np.full((4, 3), 5, np.uint8)}
    feeds |= {n: np.array([value], np.float16) for n, value in (("as", 0.5), ("bs", 1), ("ys", 0.25))}
    assert np.asarray(exe.run(feeds)["y"]).tolist() == [[120] * 3] * 2


@pytest.mark.parametrize("stride", [1, 2, 3, -1, -2])
def test_slices_that_may_be_empty(stride: int) -> None:
    """Bounds are inputs: of a walk in larger steps through nothing, too, the end lies inside of the axis."""
    feeds = [
        {"x": rng(4, 5), "s": ints(start), "e": ints(end)}
        for start, end in ((0, 0), (0, 4), (4, 4), (-1, -99), (3, 1), (1, 3), (9, -1), (-9, 9))
    ]
    agree([node("Slice", ["x", "s", "e", "a", "p"])], *feeds, weights={"a": ints(1), "p": ints(stride)})
