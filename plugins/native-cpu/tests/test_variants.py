"""Artifacts for several kinds of machines, which choose when they are loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import kernelyard as ky
from kernelyard.cli.commands.compile import targets_of
from kernelyard.cli.main import main as command_line
from kernelyard.cli.options import CompileOptions
from kernelyard.driver.compile import request_to_tune
from kernelyard.driver.measured_placement import save_placements
from kernelyard.errors import ArtifactError, BackendUnavailableError, PlacementWarning
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.placement_decision import PlacementDecision
from kernelyard.testing import assert_allclose, evaluate
from kernelyard_native_cpu import machine

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


def network(columns: int = 512) -> IRModule:
    """A product with 1 MiB of weights, and what follows it."""
    b = FunctionBuilder()
    weight = np.random.default_rng(0).standard_normal((512, columns), np.float32)
    product = b.op("matmul", b.input("x", (4, 512)), weight)
    return IRModule({"main": b.function(b.op("nn.softmax", b.op("tanh", product), axis=1))})


@pytest.fixture(scope="module")
def fat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fat") / "fat.kyar"
    least, *variants = (
        ky.compile(network(), target=ky.Target("cpu", mcpu=each), backends=[], strict=True) for each in LEVELS
    )
    least.save(path, variants)
    return path


@pytest.mark.parametrize("level", LEVELS)
def test_the_best_that_a_machine_has_is_loaded(fat, level, monkeypatch):
    monkeypatch.setattr(machine, "host_features", lambda: frozenset(machine.features_of_level(level)))
    exe = ky.load(fat)
    assert exe.target == f"cpu mcpu={level}"
    assert exe.report.target == exe.target
    assert {module.needs for module in exe.modules} == {level}


def test_what_is_loaded_here_computes_the_same(fat):
    x = np.random.default_rng(1).standard_normal((4, 512), np.float32)
    assert_allclose(ky.load(fat)(x), evaluate(network(), [x])[0])


def test_a_machine_with_less_is_told_what_it_lacks(fat, monkeypatch):
    monkeypatch.setattr(machine, "host_features", lambda: frozenset(machine.features_of_level("x86-64")))
    with pytest.raises(BackendUnavailableError, match="several kinds of machines") as caught:
        ky.load(fat)
    assert str(caught.value.expected) == "x86-64-v2; or x86-64-v3; or x86-64-v4"
    assert str(caught.value.found).startswith("no cx16, popcnt, sahf, sse3, sse4.1, sse4.2, ssse3; no avx, avx2")


def test_another_architecture_is_told_so(fat, monkeypatch):
    monkeypatch.setattr(machine.platform, "machine", lambda: "riscv64")
    with pytest.raises(BackendUnavailableError) as caught:
        ky.load(fat)
    assert (caught.value.found, caught.value.expected) == ("riscv64", "x86_64")


def test_weights_are_there_once(fat, tmp_path):
    """Each level lays the weights of a product out for its vectors; v2 and v3 share what they lay out alike."""
    alone = tmp_path / "alone.kyar"
    ky.compile(network(), target=ky.Target("cpu", mcpu="x86-64-v2"), backends=[]).save(alone)
    again = tmp_path / "again.kyar"
    exe = ky.load(alone)
    exe.save(again, [ky.load(alone)])
    assert again.stat().st_size < alone.stat().st_size + 100_000
    assert fat.stat().st_size < 3.2 * alone.stat().st_size


def test_two_architectures_in_one_file(tmp_path):
    path = tmp_path / "both.kyar"
    arm = ky.compile(network(), target=ky.Target("cpu", arch="aarch64", mcpu="cortex-a72"), backends=[])
    intel = ky.compile(network(), target=ky.Target("cpu", arch="x86-64", mcpu="x86-64-v2"), backends=[])
    arm.save(path, [intel])
    assert "aarch64" in ky.load(path).target or "x86-64" in ky.load(path).target


def test_another_model_is_no_variant(tmp_path):
    with pytest.raises(ArtifactError, match="another model"):
        ky.compile(network(), backends=[]).save(tmp_path / "m.kyar", [ky.compile(network(256), backends=[])])
    assert not list(tmp_path.iterdir())


# --- the command line -------------------------------------------------------------------------------------------------
def test_compile_for_targets(tmp_path):
    output = tmp_path / "fat.kyar"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x", "y"))
    onnx.save(
        helper.make_model(helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", [x], [y])),
        tmp_path / "m.onnx",
    )
    arguments = [
        "compile",
        str(tmp_path / "m.onnx"),
        "-o",
        str(output),
        "--targets",
        ",".join(LEVELS[:2]),
        "--backends",
        "none",
    ]
    done = CliRunner().invoke(command_line, arguments)
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(command_line, ["inspect", str(output), "--json"])
    variants = json.loads(shown.output)["variants"]
    assert [each["target"] for each in variants] == ["cpu mcpu=x86-64-v3"]


def test_compile_for_cpus_and_devices():
    """All architectures of a kind of device are one target, behind the CPUs."""
    found = targets_of("cuda:sm_80,x86-64-v2,aarch64:neoverse-n1,cuda:sm_90", CompileOptions(None, None, ()))
    assert [str(each["target"]) for each in found] == [
        "cpu mcpu=x86-64-v2",
        "cpu arch=aarch64 mcpu=neoverse-n1",
        "cuda arch=sm_80,sm_90",
    ]


def test_measured_placements_for_each_target(tmp_path):
    """One file of decisions, one of which fits each target; where none does, the default is taken, and said so."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x", "y"))
    model, output, placement = tmp_path / "m.onnx", tmp_path / "fat.kyar", tmp_path / "placements.json"
    onnx.save(helper.make_model(helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [x], [y])), model)
    decisions = []
    for level, name in zip(LEVELS[:2], ("native-cpu alone", "dnnl first"), strict=True):
        request = request_to_tune(model, ky.Tuning(), target=ky.Target("cpu", mcpu=level), backends=["dnnl"])
        backends = ("dnnl",) if name == "dnnl first" else ()
        decisions.append(PlacementDecision(name, backends, facts=request.facts))
    save_placements(placement, decisions)
    arguments = ["compile", str(model), "-o", str(output), "--backends", "dnnl", "--placement", str(placement)]
    done = CliRunner().invoke(command_line, [*arguments, "--targets", ",".join(LEVELS[:2])])
    assert done.exit_code == 0, done.output
    exe = ky.load(output)
    assert exe.target == f"cpu mcpu={LEVELS[1]}"
    assert exe.report.decision == decisions[1]
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    value = np.random.default_rng(0).standard_normal((4, 8), np.float32)
    powers = np.exp(value)
    assert_allclose(exe(value), powers / powers.sum(-1, keepdims=True))
    done = CliRunner().invoke(command_line, [*arguments, "--targets", LEVELS[2]])
    assert isinstance(done.exception, PlacementWarning)  # an error here, as all warnings in tests
    assert f"target: cpu mcpu={LEVELS[2]}, measured with" in str(done.exception)


@pytest.mark.parametrize("targets", ["x86-64-v2,x86-64-v2", "x86-64-v2,", ""])
def test_targets_that_cannot_be_meant(targets, tmp_path):
    done = CliRunner().invoke(command_line, ["compile", "m.onnx", "-o", str(tmp_path / "m.kyar"), "--targets", targets])
    assert done.exit_code == 2
    assert "each once" in done.output
