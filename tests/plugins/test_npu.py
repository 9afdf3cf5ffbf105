"""A vendor's device, from its package alone: compiled for, run, saved, and run by runtime halves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fake_distribution import MANIFEST, install

import kernelyard as ky
from kernelyard import dims
from kernelyard.cli.commands.doctor import command as doctor
from kernelyard.errors import BackendUnavailableError, DeviceError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.runtime.api import Part
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate
from kernelyard.testing.conformance.place import device_of, plugins_for

SITE = Path(__file__).parent / "npu"
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, as pip would have installed it."""
    monkeypatch.syspath_prepend(str(SITE))
    get_manager.cache_clear()
    yield
    get_manager.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernelyard_npu"]:
        del sys.modules[name]


@pytest.fixture
def network() -> IRModule:
    """relu((tanh(x @ w) + b) @ v): what lies between the products is nothing that the device can do."""
    random = np.random.default_rng(0)
    w, bias, v = (random.standard_normal(shape, dtype=np.float32) for shape in ((4, 8), (8,), (8, 2)))
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (dims.symbol("n"), 4)), w)
    middle = b.op("add", b.op("tanh", product), bias)
    return IRModule({"main": b.function(b.op("nn.relu", b.op("matmul", middle, v)))})


def test_another_target_is_refused_with_the_right_one(network: IRModule) -> None:
    with pytest.raises(BackendUnavailableError, match="npu cannot be used here") as caught:
        ky.compile(network, backends=["npu"])
    assert caught.value.hint == "compile for its target: target='npu'"


def test_what_the_device_cannot_do_runs_on_the_host(network: IRModule) -> None:
    exe = ky.compile(network, target="npu", strict=True)
    assert_offloaded(exe, "npu", "npu.matmul", count=2)
    assert_offloaded(exe, "npu", "npu.relu", count=1)
    assert [exe.modules[step.module].kind for step in exe.main.steps] == ["npu", "native-cpu", "npu", "npu"]
    assert "reference" not in {module.kind for module in exe.modules}
    for feed in (X, X[:1]):
        result = exe(feed)
        assert result.device == ky.device("npu")
        assert_allclose(result.numpy(), evaluate(network, [feed])[0])


@pytest.mark.parametrize("failure", [DeviceError("the queue stopped"), RuntimeError("the queue stopped")])
def test_work_that_fails_on_the_device_is_not_blamed_on_the_host(
    network: IRModule, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    exe = ky.compile(network, target="npu", strict=True)
    want = exe(X).numpy()

    def fail(self: object, address: int, array: np.ndarray) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr("kernelyard_npu.driver.NpuDriver.download", fail)
        with pytest.raises(DeviceError, match="the queue stopped") as caught:
            exe(X)
    assert "runs on the host, or work on npu:0 before it" in str(caught.value)
    assert "native-cpu" not in str(caught.value)
    np.testing.assert_array_equal(exe(X).numpy(), want)


@pytest.mark.parametrize("failure", [DeviceError, RuntimeError])
@pytest.mark.parametrize("waits", ["numpy", "wait", "each step"])
def test_work_that_fails_on_a_queue_says_where_and_how_to_go_on(
    network: IRModule, monkeypatch: pytest.MonkeyPatch, waits: str, failure: type[Exception]
) -> None:
    exe = ky.compile(network, target="npu", strict=True)
    machine = ky.VirtualMachine(exe)
    want = machine["main"](X)

    def fail(self: object, *arguments: object) -> None:
        raise failure("the queue stopped")

    def run_each_step() -> None:
        machine.set_instrument(lambda *step: None)
        machine["main"](X)

    waiting: dict[str, tuple[str, Callable[[], object], str]] = {
        "numpy": ("download", want.numpy, "download of a result of (3, 2), or work on npu:0 before it"),
        "wait": ("synchronize", machine.wait, "work on npu:0 until here"),
        "each step": ("synchronize", run_each_step, "npu_0, run by npu of kernelyard-npu"),
    }
    method, call, where = waiting[waits]
    with monkeypatch.context() as patch:
        patch.setattr(f"kernelyard_npu.driver.NpuDriver.{method}", fail)
        with pytest.raises(DeviceError, match="the queue stopped") as caught:
            call()
    assert where in str(caught.value.where)
    assert "set_instrument" in str(caught.value.hint)
    machine.set_instrument(None)
    assert_allclose(machine["main"](X).numpy(), evaluate(network, [X])[0])


def test_the_report_says_what_runs_on_the_host_and_why(network: IRModule) -> None:
    for report in (ky.explain(network, target="npu"), ky.compile(network, target="npu").report):
        why = {node.op: [(r.backend, r.code) for r in node.reasons] for node in report.nodes}
        assert why == {"matmul": [], "tanh": [("npu", "host")], "add": [("npu", "host")], "nn.relu": []}
        assert "2 ops on the host: npu has no code generator here; kernels of native-cpu run" in str(report)
    assert report.coverage["native-cpu"]["ops"] == 2
    assert ky.Report.from_json(report.to_json()) == report


def test_backends_may_be_named_with_the_host_code_generator(network: IRModule) -> None:
    assert set(ky.explain(network, "npu", ["npu", "native-cpu"]).coverage) == {"npu", "native-cpu"}
    exe = ky.compile(network, target="npu", backends=[])
    assert {module.kind for module in exe.modules} == {"native-cpu"}
    assert_allclose(exe(X).numpy(), evaluate(network, [X])[0])


def test_without_any_code_generator_it_is_said(network: IRModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_PLUGINS", "npu")
    get_manager.cache_clear()
    with pytest.raises(BackendUnavailableError, match="no code generator for target 'npu'"):
        ky.compile(network, target="npu")


def test_a_code_generator_that_is_out_of_order_is_not_passed_over(
    network: IRModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = MANIFEST.replace('"cpu"', '"npu"').replace("backend", "code_generator")
    install(tmp_path, "native-npu", manifest=manifest.replace(">=2.0,<3", ">=9"))
    monkeypatch.syspath_prepend(str(tmp_path))
    get_manager.cache_clear()
    with pytest.raises(BackendUnavailableError, match=r"native-npu.* is incompatible: needs plugin API >=9") as caught:
        ky.compile(network, target="npu")
    assert caught.value.hint == "pip install --upgrade kernelyard"


def test_devices_are_named_and_listed() -> None:
    assert ky.devices("npu") == (ky.device("npu"), ky.device("npu", 1))
    assert ky.devices("cpu") == (ky.cpu(),)
    with pytest.raises(DeviceError, match="no such NPU"):
        ky.device("npu", 2).require()


def environment() -> dict[str, str]:
    """Variables of a process that has the package."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(SITE), *filter(None, sys.path)])}


@pytest.mark.slow
def test_it_conforms(tmp_path: Path) -> None:
    """The conformance kit finds the device, and the host's code generator beside the backend."""
    assert device_of("npu") == ky.device("npu")
    assert plugins_for("npu") == ("npu", "native-cpu")
    kit = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "kernelyard.testing"]
    done = subprocess.run([*kit, "--backend", "npu"], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d{3} passed", done.stdout), done.stdout


def test_doctor_says_which_devices_nothing_drives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELYARD_PLUGINS", "npu,native-cpu")
    get_manager.cache_clear()
    assert CliRunner().invoke(doctor).output.endswith("all in order\n")
    install(tmp_path, "vpu", manifest=MANIFEST.replace('"cpu"', '"vpu"'))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("KERNELYARD_PLUGINS", "npu,native-cpu,vpu")
    get_manager.cache_clear()
    said = CliRunner().invoke(doctor)
    assert said.exit_code == 1
    assert "to mend: vpu (kernelyard-vpu): for vpu, whose devices no installed plugin drives" in said.output
    assert "to mend: npu" not in said.output


ALONE = """
import sys
import numpy as np
import kernelyard as ky
exe = ky.load("m.kyar")
machine = ky.VirtualMachine(exe, ky.device("npu", 1))
result = machine["main"](np.load("x.npy"))
assert result.device == ky.device("npu", 1), result.device
np.save("y.npy", result.numpy())
compiler = {"ir", "ops", "tir", "transform", "plugins", "driver", "cli"}
print(sorted(name for name in sys.modules if name.startswith("kernelyard.") and name.split(".")[1] in compiler))
print(sorted(name for name in sys.modules if name.startswith("kernelyard_npu.")))
"""


def test_saved_it_runs_by_runtime_halves_alone(network: IRModule, tmp_path: Path) -> None:
    ky.compile(network, target="npu").save(tmp_path / "m.kyar")
    np.save(tmp_path / "x.npy", X)
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "['kernelyard_npu.driver', 'kernelyard_npu.runtime']"]
    assert_allclose(np.load(tmp_path / "y.npy"), evaluate(network, [X])[0])


def test_a_profile_has_what_the_device_counted(network: IRModule, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = ky.compile(network, target="npu")
    runtime = type(next(module for module in exe.modules if module.kind == "npu"))
    build = runtime.build

    def counting(self, graph, args, values, context):
        assert context.is_profiled
        call = build(self, graph, args, values, context)
        call.counters = lambda: [(Part("multipliers"), 2e-6), (Part("memory"), 1e-6)]
        return call

    monkeypatch.setattr(runtime, "build", counting)
    step = next(step for step in exe.profile([X], calls=2).steps if step.module == "npu")
    assert [(part.label, part.seconds) for part in step.inside] == [("multipliers", 2e-6), ("memory", 1e-6)]
