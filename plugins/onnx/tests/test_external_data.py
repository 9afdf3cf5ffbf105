"""Weights in files beside the model: read when they lie in its folder, refused everywhere else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from kernelyard.errors import ExternalDataError
from kernelyard.ir import Call, Constant
from kernelyard_onnx.frontend import ONNXFrontend

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


def write(folder: Path, location: str, offset: str | None = None, length: str | None = None) -> Path:
    """A model whose one weight says that it lies at `location`."""
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[3, 4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 4])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def weight_of(path: object, **options: object) -> np.ndarray:
    main = ONNXFrontend().import_model(path, options)["main"]
    (binding,) = main.bindings  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(binding.value, Call)
    constant = binding.value.args[1]
    assert isinstance(constant, Constant)
    return constant.data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    for path in (inside / "w.bin", inside / "sub" / "w.bin", tmp_path / "outside.bin"):
        path.write_bytes(b"\7" * 64 + WEIGHT.tobytes())
    return inside


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "./w.bin"])
def test_read_from_the_folder(location, folder: Path) -> None:
    np.testing.assert_array_equal(weight_of(write(folder, location, "64", "48")), WEIGHT)
    np.testing.assert_array_equal(weight_of(str(write(folder, location, "64"))), WEIGHT)


def test_models_from_memory_need_the_folder(folder: Path) -> None:
    data = write(folder, "w.bin", "64").read_bytes()
    with pytest.raises(ExternalDataError, match="folder is not known") as caught:
        weight_of(data)
    assert "folder" in str(caught.value.hint)
    np.testing.assert_array_equal(weight_of(data, folder=folder), WEIGHT)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("../outside.bin", "leaves the folder"),
        ("sub/../../outside.bin", "leaves the folder"),
        ("..\\outside.bin", "leaves the folder"),
        ("/etc/hostname", "absolute"),
        ("C:\\weights.bin", "absolute"),
        ("C:weights.bin", "absolute"),
        ("\\\\server\\share\\w.bin", "absolute"),
        ("", "empty"),
        ("w.bin\0", "null character"),
        ("absent.bin", "does not exist"),
        ("sub", "does not name a regular file"),
    ],
)
def test_paths_that_are_refused(location, reason, folder: Path) -> None:
    with pytest.raises(ExternalDataError, match=reason) as caught:
        weight_of(write(folder, location, "64"))
    assert "'w'" in str(caught.value.where)
    assert caught.value.code == "KY403"


@pytest.mark.parametrize("target", ["file outside", "file inside", "folder outside", "hard link"])
def test_links_are_refused(target, folder: Path) -> None:
    link, location = folder / "link.bin", "link.bin"
    if target == "file outside":
        link.symlink_to(folder.parent / "outside.bin")
    elif target == "file inside":
        link.symlink_to(folder / "w.bin")
    elif target == "folder outside":
        (folder / "dir").symlink_to(folder.parent)
        location = "dir/outside.bin"
    else:
        os.link(folder.parent / "outside.bin", link)
    with pytest.raises(ExternalDataError, match="link"):
        weight_of(write(folder, location, "64"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_and_does_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "pipe.bin")
    with pytest.raises(ExternalDataError, match="does not name a regular file"):
        weight_of(write(folder, "pipe.bin"))


@pytest.mark.parametrize(
    ("offset", "length", "reason"),
    [
        ("65", None, "truncated"),
        ("9" * 30, None, "truncated"),
        ("-1", None, "not a number"),
        ("x", None, "not a number"),
        ("64", "47", "does not fit its shape"),
        ("64", "1e3", "not a number"),
    ],
)
def test_ranges_that_do_not_fit(offset, length, reason, folder: Path) -> None:
    with pytest.raises(ExternalDataError, match=reason):
        weight_of(write(folder, "w.bin", offset, length))


def test_a_model_behind_a_link_reads_the_folder_that_it_was_asked_in(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.onnx").symlink_to(write(folder, "w.bin", "64"))
    with pytest.raises(ExternalDataError, match="does not exist"):
        weight_of(other / "model.onnx")


def cache_of_links(folder: Path, tmp_path: Path) -> Path:
    """A folder of links to files in one store, as tools that download models lay them out."""
    store, shown = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    store.mkdir()
    shown.mkdir(parents=True)
    write(folder, "w.bin", "64").rename(store / "0a1b")
    (folder / "w.bin").rename(store / "2c3d")
    (shown / "model.onnx").symlink_to(Path("../../blobs/0a1b"))
    (shown / "w.bin").symlink_to(Path("../../blobs/2c3d"))
    return shown


def test_links_to_the_store_of_the_model_are_followed(folder: Path, tmp_path: Path) -> None:
    shown = cache_of_links(folder, tmp_path)
    np.testing.assert_array_equal(weight_of(shown / "model.onnx"), WEIGHT)


@pytest.mark.parametrize("target", ["outside.bin", "blobs/deep/w.bin", "blobs/again"])
def test_other_links_beside_them_are_refused(target, folder: Path, tmp_path: Path) -> None:
    shown = cache_of_links(folder, tmp_path)
    (tmp_path / "blobs" / "deep").mkdir()
    (tmp_path / "blobs" / "deep" / "w.bin").write_bytes(bytes(200))
    (tmp_path / "blobs" / "again").symlink_to(tmp_path / "outside.bin")
    (shown / "w.bin").unlink()
    (shown / "w.bin").symlink_to(tmp_path / target)
    with pytest.raises(ExternalDataError, match="link"):
        weight_of(shown / "model.onnx")
