"""The command `kernelyard quantize`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from byte_products import HAS_BYTE_PRODUCTS
from click.testing import CliRunner
from quantized_models import convolutions, feeds_of, linear

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard_onnx_export import to_onnx
from kernelyard_quantize.command import command


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(to_onnx(convolutions()), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, feed in enumerate(feeds_of(convolutions())):
        np.savez(folder / f"{number}.npz", **feed)
    return folder


def test_a_model_is_quantized_and_saved(model: Path, data: Path) -> None:
    output = model.with_name("quantized.onnx")
    result = CliRunner().invoke(command, [str(model), "--data", str(data), "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("static: 3 layers quantized, 0 in float32")
    assert "SQNR" in result.output
    ops = [node.op_type for node in onnx.load(output).graph.node]
    assert ops.count("QuantizeLinear") == 3
    is_taken = any(region.pattern == "dnnl.quantized_conv2d" for region in ky.explain(output).regions)
    assert is_taken == HAS_BYTE_PRODUCTS  # without VNNI oneDNN declines products of integers


def test_json_and_an_artifact(model: Path, data: Path) -> None:
    output = model.with_name("quantized.kyar")
    arguments = [str(model), "--data", str(data), "-o", str(output), "--scheme", "dynamic", "--json"]
    result = CliRunner().invoke(command, arguments)
    facts = json.loads(result.output)
    assert (facts["scheme"], len(facts["layers"]), facts["file"]) == ("dynamic", 3, str(output))
    feed = feeds_of(convolutions())[0]
    exact = ky.compile(model).run(feed)["output_0"].numpy()
    np.testing.assert_allclose(ky.load(output).run(feed)["output_0"].numpy(), exact, atol=0.05 * np.abs(exact).max())


def test_arrays_are_feeds_of_a_model_of_one_input(tmp_path: Path) -> None:
    onnx.save(to_onnx(linear()), tmp_path / "model.onnx")
    np.save(tmp_path / "0.npy", feeds_of(linear())[0]["x"])
    output = tmp_path / "quantized.onnx"
    result = CliRunner().invoke(command, [str(tmp_path / "model.onnx"), "--data", str(tmp_path), "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert output.exists()


@pytest.mark.parametrize(("folder", "message"), [("nowhere", "no calibration data"), (None, "needs calibration data")])
def test_errors_have_codes(folder: str | None, message: str, model: Path) -> None:
    arguments = ["--data", str(model.with_name(folder))] if folder else ["--scheme", "static"]
    result = CliRunner().invoke(main, ["quantize", str(model), *arguments, "-o", str(model.with_name("q.onnx"))])
    assert result.exit_code == 1
    assert "[KY70" in result.output
    assert message in result.output


def test_pictures_alone_are_no_feeds(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("0.PNG", "1.jpg"):
        (folder / name).write_bytes(b"a picture")
    output = model.with_name("q.onnx")
    result = CliRunner().invoke(main, ["quantize", str(model), "--data", str(folder), "-o", str(output)])
    assert "[KY701]" in result.output
    assert "0.PNG and 1 more" in result.output
    assert "numpy.save" in result.output
    assert not output.exists()


@pytest.mark.parametrize("name", ["model.onnx", "no/such/folder/q.onnx"])
def test_where_it_cannot_write_is_known_before_the_work(name: str, model: Path, data: Path) -> None:
    before = model.read_bytes()
    result = CliRunner().invoke(main, ["quantize", str(model), "--data", str(data), "-o", str(model.parent / name)])
    assert result.exit_code == 1
    assert "cannot write" in result.output
    assert model.read_bytes() == before


def test_a_file_that_is_no_array_is_named(model: Path, data: Path) -> None:
    (data / "9.npz").write_bytes(b"no array")
    arguments = ["quantize", str(model), "--data", str(data), "--json", "-o", str(model.with_name("q.onnx"))]
    result = CliRunner().invoke(main, arguments)
    assert json.loads(result.output)["error"]["code"] == "KY701"
