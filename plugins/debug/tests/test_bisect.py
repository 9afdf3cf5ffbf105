"""kernelyard.bisect: the pass, region or kernel that makes a model fail is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from faults import crashing_pass, network, wrong_kernel, wrong_pass

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard.ir import Call, Function, FunctionBuilder, IRModule
from kernelyard.ops.interpreter import run
from kernelyard.plugins.api import KernelNode
from kernelyard.transform.pass_infra.bisect import BISECT_LIMIT, Bisection, decisions_of
from kernelyard_debug import DebugError, bisect
from kernelyard_dnnl.backend import DnnlSerializer
from kernelyard_onnx_export import to_onnx

HALVES = 10  # of fewer than 1,024 passes, regions and kernels


@pytest.mark.parametrize("rows", [4, None])
def test_a_wrong_kernel(rows: int | None) -> None:
    with wrong_kernel("erf"):
        report = bisect(network(rows), backends=[], sizes={"n": 3})
    assert report.culprit is not None
    assert report.without is not None
    assert report.culprit[1:4] == ("kernel", "erf", "activation 1")
    assert report.without.kind == "agrees"
    assert report.checks <= HALVES + 3


def test_a_wrong_pass_and_one_that_crashes() -> None:
    for broken in (wrong_pass("sigmoid", "tanh"), crashing_pass("sigmoid")):
        pipeline = ky.get_default_pipeline("cpu").after("simplify", broken)
        report = bisect(network(), "onnxruntime", pipeline=pipeline)
        assert report.culprit is not None
        assert report.culprit[1:3] == ("pass", broken.name)
        assert report.failure.place is not None
        assert report.failure.place.name == broken.name


def test_a_region_of_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that leaves out what follows a convolution."""
    honest = DnnlSerializer.visit_composite

    def careless(self: DnnlSerializer, composite: Function, call: Call) -> KernelNode:
        node = honest(self, composite, call)
        return replace(node, attrs={**node.attrs, "post_ops": []}) if node.op == "conv" else node

    monkeypatch.setattr(DnnlSerializer, "visit_composite", careless)
    report = bisect(convolutions())
    assert report.culprit is not None
    assert (report.culprit.kind, report.culprit.name.partition(".")[0]) == ("region", "dnnl")
    assert report.failure.place is not None
    assert (report.failure.place.kind, report.failure.place.name) == ("region", "dnnl")


def convolutions() -> IRModule:
    """Two convolutions, of which one is followed by a ReLU."""
    random = np.random.default_rng(0)
    b = FunctionBuilder()
    value = b.input("x", (1, 16, 32, 32))
    for number in range(2):
        weight = random.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
        value = b.op("nn.conv2d", value, weight, padding=(1, 1, 1, 1), origin=f"convolution {number}")
        value = b.op("nn.relu", value, origin="rectified") if number else value
    return IRModule({"main": b.function(value)})


@pytest.mark.filterwarnings("ignore:these ops run on the slow reference interpreter")
@pytest.mark.parametrize("limit", [0, 3, 17, 30, 1000])
@pytest.mark.parametrize("backends", [[], "auto"])
def test_any_part_of_a_compile_gives_the_same_numbers(limit: int, backends: list[str] | str) -> None:
    feeds = {"x": np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)}
    lines: list[str] = []
    exe = ky.compile(network(None), backends=backends, instruments=[Bisection(limit, lines.append)])
    [expected] = run(network(None), feeds)
    np.testing.assert_allclose(exe(feeds["x"]).numpy(), expected, rtol=1e-5, atol=1e-6)
    decisions = list(decisions_of("\n".join(lines)))
    assert [each.number for each in decisions] == list(range(1, len(lines) + 1))
    assert sum(each.applied for each in decisions) == min(limit, len(decisions))
    assert {"pass", "kernel"} <= {each.kind for each in decisions}


def test_a_command_is_the_oracle_and_reads_the_variable(tmp_path: Path) -> None:
    onnx.save(to_onnx(network()), tmp_path / "model.onnx")
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, numpy as np, kernelyard as ky\n"
        "from kernelyard.legalize import custom_kernel\n"
        "@custom_kernel('erf')\n"
        "def wrong(b, x):\n"
        "    return b.compute(x.shape, lambda *i: x[i] * 0.5)\n"
        "exe = ky.compile(sys.argv[1], backends=[])\n"
        "x = np.ones((4, 8), np.float32)\n"
        "sys.exit(int(abs(exe(x).numpy() - np.load(sys.argv[2])).max() > 1e-3))\n"
    )
    [expected] = run(network(), {"x": np.ones((4, 8), np.float32)})
    np.save(tmp_path / "expected.npy", expected)
    command = f"{sys.executable} {script} {{model}} {tmp_path / 'expected.npy'}"
    result = CliRunner().invoke(main, ["bisect", str(tmp_path / "model.onnx"), "--check", command, "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.output)
    assert (facts["culprit"]["kind"], facts["culprit"]["name"]) == ("kernel", "erf")
    repeated = subprocess.run(facts["repeat"], shell=True, capture_output=True, text=True, check=False)
    assert repeated.returncode == 1
    assert f"BISECT: running kernel ({facts['culprit']['number']}) erf for" in repeated.stderr


def test_the_repeated_command_has_the_options(tmp_path: Path) -> None:
    onnx.save(to_onnx(network(None)), tmp_path / "model.onnx")
    arguments = [
        "bisect",
        str(tmp_path / "model.onnx"),
        "--backends",
        "none",
        "--dim",
        "n=2",
        "--against",
        "onnxruntime",
    ]
    with wrong_kernel("tanh"):
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    last = result.output.splitlines()[-1]
    assert last.startswith(f"repeat: {BISECT_LIMIT}=")
    assert last.endswith(f"diff {tmp_path / 'model.onnx'} --against onnxruntime --dim n=2 --backends none")


def test_a_limit_that_is_no_number_has_a_code(tmp_path: Path) -> None:
    onnx.save(to_onnx(network()), tmp_path / "model.onnx")
    command = [sys.executable, "-m", "kernelyard", "compile", str(tmp_path / "model.onnx")]
    environment = {**os.environ, BISECT_LIMIT: "many"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "no number" in done.stderr) == (1, True)


def test_what_does_not_fail_or_compile_is_said() -> None:
    with pytest.raises(DebugError, match="does not fail"):
        bisect(network())
    with pytest.raises(DebugError, match="nothing is compiled"):
        bisect(network(), check="false {model}")
