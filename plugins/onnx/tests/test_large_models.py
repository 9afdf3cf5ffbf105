"""Weights stay where they lie until they are wanted: large files are read once, and weights beside them are mapped."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from kernelyard.errors import ExternalDataError, KernelyardError, ModelFormatError
from kernelyard.ir import Call, Constant
from kernelyard.runtime.abi.memory import address_of
from kernelyard_onnx import outline
from kernelyard_onnx.frontend import ONNXFrontend
from kernelyard_onnx.model_file import read_model
from kernelyard_onnx.session import Session

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]


def f(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def everywhere() -> onnx.ModelProto:
    """Weights as initializer, in a node, in a branch, in a function, and sparse ones."""
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["sum"])],
        "branch",
        [],
        [helper.make_tensor_value_info("sum", 1, [30, 40])],
        [numpy_helper.from_array(f(30, 40), "inner")],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["negative"])],
        "o",
        [],
        [helper.make_tensor_value_info("negative", 1, [30, 40])],
    )
    body = [constant("c", f(40)), helper.make_node("Mul", ["a", "c"], ["b"])]
    function = helper.make_function("own", "Scaled", ["a"], ["b"], body, OPSETS)
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(f(1100), "sparse"), numpy_helper.from_array(np.arange(1100), "at"), [1200]
    )
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=other),
        constant("node", f(1, 40, 50)),
        helper.make_node("MatMul", ["y", "node"], ["product"]),
        helper.make_node("Scaled", ["x"], ["scaled"], domain="own"),
        helper.make_node("Reshape", ["sparse", "shape"], ["dense"]),
        helper.make_node("Sum", ["scaled", "dense", "w"], ["z"]),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, [30, 40]), helper.make_tensor_value_info("flag", 9, [])]
    outputs = [helper.make_tensor_value_info("product", 1, None), helper.make_tensor_value_info("z", 1, None)]
    weights = [numpy_helper.from_array(f(30, 40), "w"), numpy_helper.from_array(np.array([30, 40]), "shape")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights, sparse_initializer=[sparse])
    return helper.make_model(graph, opset_imports=OPSETS, functions=[function])


def external_count(data: bytes) -> int:
    return outline.outline_of(data, len(data)).count(outline.INSIDE.encode())


def filled_in(message: object, data: bytes) -> None:
    """Put the weights of an outline back."""
    if isinstance(message, onnx.TensorProto):
        entries = {entry.key: entry.value for entry in message.external_data}
        if entries.get("location") == outline.INSIDE:  # all are raw here
            start, length = int(entries["offset"]), int(entries["length"])
            message.ClearField("external_data")
            message.ClearField("data_location")
            message.raw_data = data[start : start + length]
        return
    for field, value in message.ListFields():  # pyright: ignore[reportAttributeAccessIssue]
        if field.message_type is not None:
            for item in [value] if hasattr(value, "ListFields") else value:
                filled_in(item, data)


@pytest.mark.parametrize("large", [0, 1, 200, 4096, 10**9])
def test_an_outline_is_the_model_without_its_large_weights(large, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outline, "LARGE", large)
    model = everywhere()
    data = model.SerializeToString()
    found = onnx.ModelProto.FromString(outline.outline_of(data, len(data)))
    assert (found == model) == (large == 10**9)
    filled_in(found, data)
    assert found == model


def test_what_is_stepped_over() -> None:
    data = everywhere().SerializeToString()
    assert external_count(data) == 5  # the function's 40 numbers and the shape are small
    assert len(outline.outline_of(data, len(data))) < 2000 < len(data)


def test_models_in_files_and_in_memory_have_the_weights_of_the_message(tmp_path: Path) -> None:
    model = everywhere()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    x = f(30, 40)
    for flag in (True, False):
        feeds = {"x": x, "flag": np.array(flag)}
        wanted = Session(model, []).run(feeds)
        for source in (path, path.read_bytes(), bytearray(path.read_bytes())):
            for found, expected in zip(Session(*_opened(source)).run(feeds), wanted, strict=True):
                np.testing.assert_array_equal(found, expected)


def _opened(source: object) -> tuple:
    model, files = read_model(source)
    return model, [], files


def weights_of(model: object) -> list[np.ndarray]:
    main = ONNXFrontend().import_model(model, {})["main"]
    calls = [binding.value for binding in main.bindings]  # pyright: ignore[reportAttributeAccessIssue]
    operands = [operand for call in calls if isinstance(call, Call) for operand in call.args]
    return [operand.data for operand in operands if isinstance(operand, Constant)]


def product(weight: onnx.TensorProto) -> onnx.ModelProto:
    rows, columns = weight.dims
    x = helper.make_tensor_value_info("x", weight.data_type, [1, rows])
    y = helper.make_tensor_value_info("y", weight.data_type, [1, columns])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=OPSETS[:1])


def beside(shape: tuple[int, int], offset: int, data_type: int = onnx.TensorProto.FLOAT) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=data_type, dims=shape, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    tensor.external_data.add(key="offset", value=str(offset))
    return tensor


def test_weights_of_a_file_are_where_kernels_read_them_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(product(numpy_helper.from_array(f(70, 90), "w")), path)
    (weight,) = weights_of(path)
    assert address_of(weight) % 64 == 0
    assert not weight.flags.writeable
    path.write_bytes(b"")  # whoever writes the model anew does not change a program that was made of it
    np.testing.assert_array_equal(weight, f(70, 90))


@pytest.mark.parametrize(("offset", "is_mapped"), [(0, True), (4096, True), (68, False), (3, False)])
def test_weights_beside_a_model_are_mapped_where_they_are_aligned(offset, is_mapped, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(offset) + f(70, 90).tobytes())
    onnx.save(product(beside((70, 90), offset)), tmp_path / "model.onnx")
    (weight,) = weights_of(tmp_path / "model.onnx")
    np.testing.assert_array_equal(weight, f(70, 90))
    assert address_of(weight) % 64 == 0
    base: object = weight
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert isinstance(getattr(base, "obj", base), __import__("mmap").mmap) == is_mapped


def test_narrow_weights_beside_a_model(tmp_path: Path) -> None:
    numbers = np.arange(-8, 8).repeat(3).reshape(3, 16)
    packed = helper.make_tensor("w", onnx.TensorProto.INT4, [3, 16], numbers.reshape(-1)).raw_data
    if not packed:
        nibbles = numbers.reshape(-1).astype(np.uint8) & 15
        packed = (nibbles[0::2] | nibbles[1::2] << 4).tobytes()
    (tmp_path / "w.bin").write_bytes(packed)
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "s")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, [3, 16]) for name in "xy")
    tensor = beside((3, 16), 0, onnx.TensorProto.INT4)
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [tensor, scale]), opset_imports=OPSETS[:1])
    onnx.save(model, tmp_path / "model.onnx")
    (found,) = Session(*_opened(tmp_path / "model.onnx")).run({"x": np.zeros((3, 16), np.float32)})
    np.testing.assert_array_equal(found, numbers * np.float32(0.5))


@pytest.mark.parametrize("data_type", [onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64])
def test_numbers_that_are_not_raw(data_type) -> None:
    """Floats are stepped over too; integers are written in fewer bytes, and read with the message."""
    numbers = np.arange(70 * 90).reshape(70, 90)
    model = product(helper.make_tensor("w", data_type, [70, 90], numbers.reshape(-1).tolist()))
    assert not model.graph.initializer[0].raw_data
    data = model.SerializeToString()
    assert external_count(data) == (data_type != onnx.TensorProto.INT64)
    (weight,) = weights_of(data)
    np.testing.assert_array_equal(weight, numbers)


def test_a_message_may_not_name_bytes_of_a_file_that_it_did_not_come_from() -> None:
    data = product(numpy_helper.from_array(f(70, 90), "w")).SerializeToString()
    stolen = onnx.ModelProto.FromString(outline.outline_of(data, len(data)))
    with pytest.raises(ExternalDataError):
        weights_of(stolen)


def test_a_file_may_not_name_bytes_beyond_its_end(tmp_path: Path) -> None:
    tensor = beside((70, 90), 10**6)
    tensor.external_data[0].value = outline.INSIDE
    onnx.save(product(tensor), tmp_path / "model.onnx")
    with pytest.raises(ExternalDataError, match="does not have") as caught:
        weights_of(tmp_path / "model.onnx")
    assert "'w'" in str(caught.value.where)


def test_a_file_that_changes_while_its_model_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(product(numpy_helper.from_array(f(70, 90), "w")), path)
    model, files = read_model(path)
    onnx.save(product(numpy_helper.from_array(-f(70, 90), "w")), path)
    os.utime(path, (0, 0))
    with pytest.raises(ExternalDataError, match="has changed"):
        Session(model, [], files)


def test_a_file_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    data = everywhere().SerializeToString()
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(ModelFormatError):
            weights_of(path)


def beside_weights() -> list[int]:
    """Where the bytes are that are not of large weights."""
    data = everywhere().SerializeToString()
    places = np.ones(len(data), bool)
    start = 0
    for part in outline.outline_of(data, len(data)).split(outline.INSIDE.encode())[1:]:
        model = part.split(b"offset\x12")[1]
        length = model[0]
        start = int(model[1 : 1 + length])
        rest = part.split(b"length\x12")[1]
        places[start : start + int(rest[1 : 1 + rest[0]])] = False
    return np.flatnonzero(places).tolist()


BESIDE_WEIGHTS = beside_weights()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_never_crash(data: st.DataObject) -> None:
    """A flipped byte gives a typed error, or a model that still makes sense."""
    damaged = bytearray(everywhere().SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.sampled_from(BESIDE_WEIGHTS))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(KernelyardError):
        weights_of(bytes(damaged))


@pytest.mark.parametrize(
    "data",
    [
        b"\x0f",  # a field of an unknown kind
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a length beyond the end
        b"\xff" * 20,  # a number that does not end
        b"\x02\x00",  # a field without a number
        b"\x3a\x85\x20" + b"\x0a\x82\x20" + b"\x2a\xff\x1f" + bytes(4093),  # a length that leaves the message around
    ],
)
def test_bytes_that_are_no_message(data) -> None:
    with pytest.raises(outline.MalformedError):
        outline.outline_of(data, len(data))
    with pytest.raises(ModelFormatError):
        read_model(data)


def test_graphs_within_graphs_without_end() -> None:
    data = onnx.GraphProto(name="g" * 5000).SerializeToString()
    for number in [6, 5, 1] * 60 + [7]:  # an attribute's graph, a node's attribute, a graph's node; the model's graph
        data = outline.encode_varint(number << 3 | 2) + outline.encode_varint(len(data)) + data
    with pytest.raises(ModelFormatError):
        read_model(data)


# --- memory -----------------------------------------------------------------------------------------------------------
PEAK = """
import resource, sys
import onnx, kernelyard.ops
import kernelyard as ky
from kernelyard_onnx.frontend import ONNXFrontend
small = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
what, path = sys.argv[1:]
made = ONNXFrontend().import_model(path, {}) if what == "import" else ky.compile(path, backends=[])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - small) * 1024)
"""


def peak(what: str, path: Path) -> int:
    """Bytes that a process of its own needs beyond what it has when all is imported."""
    done = subprocess.run([sys.executable, "-c", PEAK, what, str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs between systems")
@pytest.mark.parametrize(("what", "share"), [("import", 0.1), ("compile", 1.2)])
def test_a_model_of_more_than_two_gigabytes_beside_its_file(what, share, tmp_path: Path) -> None:
    rows, columns = 4 * 1024, 140 * 1024
    size = 4 * rows * columns
    assert size > 2**31
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)  # a hole: no disk is used
    # A table that rows are taken of: kernels of products would have their weights packed, which makes others of them.
    x = helper.make_tensor_value_info("x", onnx.TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", columns])
    nodes = [helper.make_node("Gather", ["w", "x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [beside((rows, columns), 0)])
    onnx.save(helper.make_model(graph, opset_imports=OPSETS[:1]), tmp_path / "model.onnx")
    assert peak(what, tmp_path / "model.onnx") < share * size


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs between systems")
def test_a_file_of_more_than_protobuf_reads(tmp_path: Path) -> None:
    """Two gigabytes in the file itself, as no protobuf library writes it."""
    rows, columns = 4 * 1024, 140 * 1024
    size = 4 * rows * columns
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[rows, columns])
    header = tensor.SerializeToString() + outline.encode_varint(9 << 3 | 2) + outline.encode_varint(size)
    model = product(tensor)
    del model.graph.initializer[:]
    field = outline.encode_varint(5 << 3 | 2) + outline.encode_varint(len(header) + size) + header
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    start = model.SerializeToString() + outline.encode_varint(7 << 3 | 2)
    start += outline.encode_varint(len(graph) + len(field) + size) + graph + field
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + size)
    assert peak("import", path) < 1.2 * size
