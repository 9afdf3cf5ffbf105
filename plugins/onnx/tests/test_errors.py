"""What is not a model, is truncated, or uses what is not supported: one clear error each."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from kernelyard.errors import FrontendError, KernelyardError, ModelFormatError, UnsupportedOperatorError
from kernelyard_onnx.frontend import ONNXFrontend


def f(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def small() -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])
    weight = onnx.numpy_helper.from_array(f(3, 4), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def read(model: object) -> None:
    ONNXFrontend().import_model(model, {})


# --- files ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"hello, this is a text file and no model at all\n" * 9, "not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "not an ONNX model"),
        (b"PK\x03\x04" + bytes(200), "not an ONNX model"),
        (bytes(64), "not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
    ],
    ids=["empty", "text", "png", "zip", "zeros", "lfs"],
)
def test_files_that_are_no_models(content, message, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=message) as caught:
        read(path)
    assert caught.value.where == str(path)
    with pytest.raises(ModelFormatError, match=message):
        read(content)


def test_a_model_truncated_anywhere_is_refused() -> None:
    data = small().SerializeToString()
    for length in range(len(data)):
        with pytest.raises(ModelFormatError):
            read(data[:length])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_never_crash(data: st.DataObject) -> None:
    """A flipped byte gives a typed error, or a model that still makes sense."""
    damaged = bytearray(small().SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(KernelyardError):
        read(bytes(damaged))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="cannot be read") as caught:
        read(tmp_path / "absent.onnx")
    assert "No such file" in str(caught.value)
    with pytest.raises(ModelFormatError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize("model", [None, 3, object(), ["x"]])
def test_objects_that_are_no_models(model) -> None:
    with pytest.raises(ModelFormatError, match="not an ONNX model"):
        read(model)


@pytest.mark.parametrize("part", ["graph", "opset_import", "ir_version"])
def test_a_model_proto_without_its_parts(part) -> None:
    model = small()
    model.ClearField(part)
    with pytest.raises(ModelFormatError, match="not an ONNX model"):
        read(model)


# --- operators --------------------------------------------------------------------------------------------------------
def test_all_unsupported_operators_are_listed_at_once(make) -> None:
    nodes = [
        helper.make_node("ImageDecoder", ["x"], ["a"], name="image"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Frobnicate", ["x"], ["c"], name="frob_1", domain="com.acme"),
        helper.make_node("Frobnicate", ["c"], ["d"], name="frob_2", domain="com.acme"),
        helper.make_node("Gradient", ["x"], ["y"], name="step", domain="ai.onnx.preview.training"),
        helper.make_node("Frobnicate", ["x"], ["e"], name="frob_3", domain="com.acme"),
    ]
    model = make(nodes, {"x": f(2, 3, 4)}, ["b", "d", "y", "e"])
    with pytest.raises(UnsupportedOperatorError) as caught:
        read(model)
    error = caught.value
    assert error.found == "ImageDecoder, ai.onnx.preview.training.Gradient, com.acme.Frobnicate"
    for name in ("image", "frob_1", "frob_2", "frob_3", "step"):  # frob_2 reads what could not be made
        assert f"node {name!r}" in str(error.where)
    assert "Relu" not in str(error.where)
    assert error.code == "KY402"


def test_many_nodes_of_one_operator_are_summed_up(make) -> None:
    nodes = [helper.make_node("ImageDecoder", ["x"], [f"y{i}"], name=f"u{i}") for i in range(40)]
    with pytest.raises(UnsupportedOperatorError) as caught:
        read(make(nodes, {"x": f(2)}, ["y0"]))
    assert "and 30 more" in str(caught.value.where)


@pytest.mark.parametrize(
    ("op", "attrs", "reason"),
    [
        ("Resize", {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}, "tf_half_pixel_for_nn"),
        ("BatchNormalization", {"_outputs": 3}, "training mode"),
        ("Conv", {"kernel_shape": [5, 5]}, "kernel_shape"),
        ("Reshape", {}, "number of elements of its shape is not fixed|rank"),
        ("Cast", {"to": onnx.TensorProto.STRING}, "its input is not a constant"),
        ("Cast", {"to": onnx.TensorProto.COMPLEX64}, "casts to COMPLEX64"),
        ("If", {"then_branch": None}, "return 0 and 0 results"),
    ],
)
def test_reasons(op, attrs, reason, make) -> None:
    image = f(1, 3, 4, 4)
    inputs = {
        "Resize": {"x": image, "r": f(8), "s": np.ones(4, np.float32)},
        "BatchNormalization": {"x": image, **{name: f(3) for name in "gbmv"}},
        "Conv": {"x": image, "w": f(2, 3, 3, 3)},
        "Reshape": {"x": image, "s": np.array([4, 12])},
        "Cast": {"x": image},
        "If": {"c": np.array(True)},
    }[op]
    outputs = [f"y{i}" for i in range(attrs.pop("_outputs", 1))]
    if "then_branch" in attrs:
        branch = helper.make_graph([], "b", [], [])
        attrs = {"then_branch": branch, "else_branch": branch}
    weights = {"s": inputs["s"]} if op == "Resize" else {}
    shapes = {"s": ["rank"]} if op == "Reshape" else {}
    node = helper.make_node(op, list(inputs), outputs, name="the_node", **attrs)
    with pytest.raises(UnsupportedOperatorError, match=reason) as caught:
        read(make([node], inputs, outputs, weights=weights, shapes=shapes))
    assert f"node 'the_node' ({op})" in str(caught.value)


@pytest.mark.parametrize("op", ["Softmax", "Concat", "Transpose", "Gather", "Flatten"])
def test_axes_out_of_range(op, make) -> None:
    attrs = {"perm": [0, 5]} if op == "Transpose" else {"axis": 7}
    inputs = {"x": f(2, 3), "i": np.array([0])} if op == "Gather" else {"x": f(2, 3)}
    with pytest.raises(UnsupportedOperatorError, match="out of range"):
        read(make([helper.make_node(op, list(inputs), ["y"], **attrs)], inputs))


def test_operands_that_do_not_fit_name_the_node(make) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")
    with pytest.raises(ModelFormatError, match="does not fit its inputs") as caught:
        read(make([node], {"x": f(2, 3), "w": f(4, 5)}))
    assert caught.value.where == "node 'dense' (MatMul)"
    assert isinstance(caught.value, FrontendError)


def test_an_operator_newer_than_the_opset_is_refused(make) -> None:
    with pytest.raises(UnsupportedOperatorError, match="Gelu"):
        read(make([helper.make_node("Gelu", ["x"], ["y"])], {"x": f(2)}, opset=17))


def test_an_opset_in_which_an_operator_has_another_meaning(make) -> None:
    node = helper.make_node("GridSample", ["x", "g"], ["y"])
    with pytest.raises(UnsupportedOperatorError, match="from opset 16 on, not in 15"):
        read(make([node], {"x": f(1, 1, 2, 2), "g": f(1, 2, 2, 2)}, opset=15))


# --- weights ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("change", ["short", "long", "type", "dims"])
def test_weights_whose_data_does_not_fit(change) -> None:
    model = small()
    weight = model.graph.initializer[0]
    if change == "short":
        weight.raw_data = weight.raw_data[:-1]
    if change == "long":
        weight.raw_data += b"\0\0\0\0"
    if change == "type":
        weight.data_type = 77
    if change == "dims":
        weight.dims[0] = 2**40
    with pytest.raises(ModelFormatError, match="weight") as caught:
        read(model)
    assert "'w'" in str(caught.value.where)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8", "bool", "float16", "uint64"])
def test_weights_in_typed_fields(dtype, make, import_main) -> None:
    values = np.array([0, 1, 1, 0, 1, 1]).astype(dtype)
    tensor = helper.make_tensor("w", helper.np_dtype_to_tensor_dtype(values.dtype), [2, 3], values.tolist())
    assert not tensor.raw_data
    model = make([helper.make_node("Add", ["x", "w"], ["y"])], {"x": values.reshape(2, 3)})
    if dtype == "bool":
        model.graph.node[0].op_type = "And"
    model.graph.initializer.append(tensor)
    constant = import_main(model).bindings[0].value.args[1]
    np.testing.assert_array_equal(constant.data, values.reshape(2, 3))
    assert constant.data.dtype == values.dtype


@pytest.mark.parametrize("dims", [[-3, 4], [-3, -4]])
def test_weights_of_negative_size(dims) -> None:
    model = small()
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    with pytest.raises(ModelFormatError, match="invalid shape"):
        read(model)


# --- models that ask for too much -------------------------------------------------------------------------------------
def test_a_sparse_weight_of_absurd_size() -> None:
    model = small()
    values = helper.make_tensor("s", onnx.TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2**30, 2**10]))
    with pytest.raises(ModelFormatError, match="invalid shape"):
        read(model)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Range", [np.float32(0), np.float32(1e12), np.float32(1)], {}),
        ("HannWindow", [np.array(2**40)], {}),
        ("DFT", [np.zeros((1, 2**14, 1), np.float32)], {"axis": 1}),
    ],
)
def test_results_of_absurd_size(op, inputs, attrs, make) -> None:
    weights = {f"w{i}": np.asarray(value) for i, value in enumerate(inputs)}
    with pytest.raises(UnsupportedOperatorError, match="elements"):
        read(make([helper.make_node(op, list(weights), ["y"], **attrs)], {"x": f(2)}, weights=weights))


def test_large_constants_of_a_shape_are_not_computed(make, import_main) -> None:
    node = helper.make_node("ConstantOfShape", ["s"], ["y"])
    main = import_main(make([node], {"x": f(2)}, weights={"s": np.array([2**20, 2**20])}))
    assert main.result_type.shape == (2**20, 2**20)


def loop(inner: list[onnx.NodeProto], turns: str) -> onnx.NodeProto:
    kinds = (("i", onnx.TensorProto.INT64), ("go", onnx.TensorProto.BOOL), ("v", onnx.TensorProto.FLOAT))
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds]
    outputs = [onnx.ValueInfoProto(name="go"), onnx.ValueInfoProto(name="v2")]
    body = helper.make_graph(inner, "body", inputs, outputs)
    return helper.make_node("Loop", [turns, "", "x"], ["y"], body=body, name="turns")


def test_nested_loops_stay_loops(make) -> None:
    inner = loop([helper.make_node("Neg", ["v"], ["v2"])], "n")
    inner.output[0] = "v2"
    model = make([loop([inner], "n")], {"x": f(2)}, weights={"n": np.array(2**62)})
    module = ONNXFrontend().import_model(model, {})
    assert len(module.entry_functions()) == 5


def test_nested_loops_end(make, monkeypatch) -> None:
    monkeypatch.setattr("kernelyard_onnx.importer.MAX_NODES", 500)
    inner = loop([helper.make_node("Neg", ["v"], ["v2"])], "n")
    inner.output[0] = "v2"
    model = make([loop([inner], "n")], {"x": f(2)}, weights={"n": np.array(60)})
    with pytest.raises(UnsupportedOperatorError, match="more than 500 nodes"):
        read(model)


def test_the_input_of_a_size_that_no_tensor_has_is_named(make) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], {"x": f(2)}, shapes={"x": [2**62]})
    with pytest.raises(ModelFormatError, match="a size is too large") as caught:
        read(model)
    assert caught.value.where == "input 'x'"
    assert str(2**62) in str(caught.value.found)
