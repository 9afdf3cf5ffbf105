"""kernelyard.diff: the layer that is wrong is named first, whatever it is held against."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from faults import (
    crashing_pass,
    deep,
    doubling_pass,
    flattened,
    fused_kernels_are_wrong,
    network,
    wrong_kernel,
    wrong_pass,
)

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard.errors import InputNameError
from kernelyard_debug import DebugError, diff
from kernelyard_debug.command_diff import command
from kernelyard_debug.difference import difference
from kernelyard_onnx_export import to_onnx


def test_ways_that_agree_do() -> None:
    report = diff(network(), every_layer=True)
    assert not report.departs
    assert [layer.label for layer in report.layers][:3] == ["product 0", "bias 0", "activation 0"]
    assert all(layer.difference is not None and not layer.difference.kind for layer in report.layers)
    assert report.first == ()


@pytest.mark.parametrize("against", ["reference", "onnxruntime"])
@pytest.mark.parametrize("rows", [4, None])
def test_a_wrong_kernel_is_found(against: str, rows: int | None) -> None:
    with wrong_kernel("erf"):
        report = diff(network(rows), against, backends=[])
    assert report.outcome.kind == "values"
    assert report.first[-1].label == "activation 1"


def test_one_placement_against_another() -> None:
    with wrong_kernel("tanh"):
        report = diff(network(), "dnnl", backends=[])
    assert report.first[-1].label == "activation 0"


def test_nan_has_its_kind() -> None:
    with wrong_kernel("tanh", factor=float("nan")):
        report = diff(network(), backends=[])
    assert report.outcome.kind == "nan"
    assert report.first[-1].label == "activation 0"


def test_a_wrong_pass_is_seen_in_its_layer() -> None:
    pipeline = ky.get_default_pipeline("cpu").after("simplify", wrong_pass("sigmoid", "tanh"))
    report = diff(network(), pipeline=pipeline)
    assert report.first[-1].label == "activation 2"


def test_a_crash_is_a_verdict() -> None:
    pipeline = ky.get_default_pipeline("cpu").after("simplify", crashing_pass("erf"))
    report = diff(network(), pipeline=pipeline)
    assert (report.outcome.kind, report.outcome.stage) == ("crash", "pass crashing")
    assert report.first[-1].label == "activation 1"


def test_the_first_of_many_wrong_layers_is_named() -> None:
    """Values that are returned are kept out of kernels: of many wrong ones, some are hidden by that."""
    with fused_kernels_are_wrong():
        report = diff(deep(6), backends=[])
    assert report.first[-1].label == "activation 0"
    assert "first layer that departs: activation 0, tanh" in str(report)


def test_an_error_names_the_layer_that_causes_it() -> None:
    """A later layer may be the first to notice what a pass makes of one."""
    pipeline = ky.get_default_pipeline("cpu").after("simplify", doubling_pass("tanh"))
    report = diff(flattened(), pipeline=pipeline)
    assert report.outcome.kind == "error"
    assert report.first[-1].label == "doubled"
    assert report.first[0].label == "flat"


def test_two_artifacts_and_one_against_a_model(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.kyar", tmp_path / "bad.kyar"
    ky.compile(network(), backends=[]).save(good)
    with wrong_kernel("erf"):
        ky.compile(network(), backends=[]).save(bad)
    report = diff(bad, good)
    assert report.outcome.kind == "values"
    assert report.first[0].label == "activation 1"
    assert diff(network(), str(bad), backends=[]).first[-1].label == "activation 1"
    assert not diff(network(), str(good), backends=[]).departs


def test_the_command_has_json_and_a_plot(tmp_path: Path) -> None:
    onnx.save(to_onnx(network(None)), tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", x=np.ones((2, 8), np.float32))
    arguments = [str(tmp_path / "model.onnx"), "--feeds", str(tmp_path / "feeds.npz"), "--backends", "none"]
    with wrong_kernel("erf"):
        result = CliRunner().invoke(command, [*arguments, "--json", "-o", str(tmp_path / "plot.svg")])
    assert result.exit_code == 1, result.output
    facts = json.loads(result.output)
    assert facts["first"][-1]["op"] == "erf"
    assert "</svg>" in (tmp_path / "plot.svg").read_text()
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0
    assert "agrees" in result.output


def test_errors_have_codes(tmp_path: Path) -> None:
    with pytest.raises(InputNameError):
        diff(network(), feeds={"y": np.zeros(1)})
    (tmp_path / "feeds.npz").write_bytes(b"nothing")
    with pytest.raises(DebugError, match="feeds cannot be read"):
        diff(network(), feeds=tmp_path / "feeds.npz")
    with pytest.raises(DebugError, match="other runner"):
        diff(network(), "nobody")
    result = CliRunner().invoke(main, ["diff", str(tmp_path / "none.onnx")])
    assert (result.exit_code, "[KY400]" in result.output) == (1, True)


def test_differences_count_what_is_born() -> None:
    found = difference(np.float32([1, np.nan, np.inf, 4]), np.float32([1, 2, 3, 5]))
    assert (found.nans, found.infs, found.absolute, found.kind) == (1, 1, 1.0, "nan")
    assert difference(np.float32([1]), np.float32([1 + 2**-23])).ulp == 1
    assert difference(np.zeros(2, np.float32), np.zeros(3, np.float32)).kind == "shape"
    assert difference(np.array([1, 2]), np.array([1, 3])).kind == "values"
    assert not difference(np.uint8([7]), np.uint8([8])).kind
