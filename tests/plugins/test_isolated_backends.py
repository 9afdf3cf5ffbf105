"""Isolated backends: what ends the process of a plugin's codegen or check is named, and the model is compiled all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from fake_distribution import MANIFEST, install

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard.dims import symbol
from kernelyard.errors import OptionError, PluginContractError, UnknownBackendError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.plugins.discovery.manager import get_manager

# Takes nn.relu and add, and notes in which process it is asked what.
PLUGIN = """
import ctypes, os, time
from functools import partial
import numpy as np
from kernelyard.plugins.api import Accept, Backend, FusionPattern, JSONSerializer, KernelNode, hookimpl, is_op, progress
from kernelyard.runtime.api import BoundCall, JSONRuntime

def note(what):
    with open(os.environ["TOLD"], "a") as told:
        print(what, os.getpid(), file=told)

def check(match):
    note("check")
    return Accept()

class Serializer(JSONSerializer):
    def visit_composite(self, composite, call):
        value = composite.bindings[0].value
        return KernelNode(value.op_name, [(str(i), each) for i, each in enumerate(value.args)])

class Runtime(JSONRuntime):
    kind = "frail"

    def prepare(self, symbol, values, threads):
        note("prepare")

    def build(self, graph, args, values, context):
        (node,) = [each for each in graph.nodes if each.kind == "kernel"]
        arrays = [a.as_array() for a in args]
        constants = [self.constants()[each.digest] for each in graph.nodes if each.kind == "constant"]
        function = {"nn.relu": lambda x: np.maximum(x, 0), "add": np.add}[node.op]
        return BoundCall([lambda: np.copyto(arrays[-1], function(*arrays[:-1], *constants))])

load = Runtime.load_from_bytes

class Frail(Backend):
    name = "frail"

    def patterns(self, target):
        return [FusionPattern("frail." + op, is_op(op)(varargs=True), check) for op in ("nn.relu", "add")]

    def codegen(self, regions, options):
        note("codegen")
        assert options.get("level", 3) == 3
        serializer = Serializer()
        return Runtime(serializer.serialize_all(regions), serializer.constants)

@hookimpl
def kernelyard_backend():
    return Frail()
"""
CODEGEN, CHECK, PREPARE = 'note("codegen")', 'note("check")', 'note("prepare")'
CRASHES = {
    "segfault": ("ctypes.string_at(0)", "it ended its process with signal 11 (SIGSEGV)"),
    "exit": ("os._exit(0)", "it ended its process with exit status 0"),
    "loop": ("ctypes.PyDLL(None).sleep(60)", "its process gave no answer within"),
}
X = np.float32([[1, -2], [-9, 1]])
WEIGHTS = np.float32([[0.25, 3]])
Told = Callable[[], list[tuple[str, bool]]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Return what was called, each with whether that was in this process."""
    path = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(path))

    def read() -> list[tuple[str, bool]]:
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(what, int(process) == os.getpid()) for what, process in lines]

    return read


@pytest.fixture
def install_frail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> Iterator[Callable[..., None]]:
    """Install the plugin, with one line in the place of another."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(line: str = "", instead: str = "", manifest: str = "isolate = true") -> None:
        plugin = PLUGIN.replace(line, instead) if line else PLUGIN
        package = "fake_kernelyard_frail"
        facts = f"{MANIFEST}options = ['level']\n{manifest}\n"
        install(tmp_path, "frail", plugin=plugin, manifest=facts, runtime=f"{package}.plugin:load", version="3.1")
        get_manager.cache_clear()

    yield put
    get_manager.cache_clear()
    for module in [name for name in sys.modules if name.startswith("fake_kernelyard")]:
        del sys.modules[module]


def model(*before: str) -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (symbol("n"), 2))
    for op in before:
        x = b.op(op, x, WEIGHTS)
    return IRModule({"main": b.function(b.op("tanh", b.op("nn.relu", x)))})


def save_onnx(path: Path) -> None:
    """Save a model of one Relu."""
    value = [onnx.helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, [2, 2]) for each in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(onnx.helper.make_model(graph, ir_version=8), path)


def assert_contained(exe: ky.Executable, message: str) -> None:
    np.testing.assert_allclose(exe(X).numpy(), np.tanh(np.maximum(X, 0)), rtol=1e-6)
    assert not [region for region in exe.report.regions if region.backend == "frail"]
    (violation,) = exe.report.violations
    assert violation.message.startswith("plugin 'frail' of kernelyard-frail 3.1: ")
    assert message in violation.message


@pytest.mark.parametrize("row", CRASHES)
def test_a_crash_in_codegen_is_named_and_the_region_runs_elsewhere(install_frail, monkeypatch, row: str) -> None:
    code, message = CRASHES[row]
    install_frail(CODEGEN, code)
    monkeypatch.setenv("KERNELYARD_PLUGIN_TIMEOUT", "6" if row == "loop" else "90")
    exe = ky.compile(model(), backends=["frail"])
    assert_contained(exe, message)
    (reasons,) = [node.reasons for node in exe.report.nodes if node.op == "nn.relu"]
    assert [(reason.backend, reason.code) for reason in reasons] == [("frail", "contract-violation")]
    if row == "segfault":
        assert " in codegen (plugin.py:" in exe.report.violations[0].message


def test_a_crash_in_a_check_is_met_in_the_rehearsal(install_frail, told: Told) -> None:
    install_frail(CHECK, f"{CHECK}; ctypes.string_at(0)")
    assert_contained(ky.compile(model(), backends=["frail"]), "signal 11 (SIGSEGV) in check (plugin.py:")
    assert told() == [("check", False)]


def test_a_crash_in_preparing_the_module_and_strict(install_frail) -> None:
    install_frail(PREPARE, "os.abort()")
    with pytest.raises(PluginContractError, match=r"signal 6 \(SIGABRT\) in prepare \(plugin.py:"):
        ky.compile(model(), backends=["frail"], strict=True)


def test_an_error_says_what_it_says_without_isolation(install_frail) -> None:
    install_frail(CODEGEN, "raise ValueError('no')")
    assert_contained(ky.compile(model(), backends=["frail"]), "could not compile them: ValueError at plugin.py:")


def test_a_sound_plugin_gives_the_same_artifact(install_frail, monkeypatch, told: Told, tmp_path: Path) -> None:
    """One region reads a weight, both a symbolic size."""
    install_frail(manifest="")
    ky.compile(model("add"), backends=["frail"]).save(tmp_path / "here.kyar")
    assert ("codegen", True) in told()
    before = len(told())
    monkeypatch.setenv("KERNELYARD_ISOLATE", "dnnl, frail")
    exe = ky.compile(model("add"), backends=["frail"], options={"frail": {"level": 3}}, strict=True)
    exe.save(tmp_path / "isolated.kyar")
    assert (tmp_path / "isolated.kyar").read_bytes() == (tmp_path / "here.kyar").read_bytes()
    np.testing.assert_allclose(exe(X).numpy(), np.tanh(np.maximum(X + WEIGHTS, 0)), rtol=1e-6)
    called = told()[before:]
    assert [here for what, here in called if what == "codegen"] == [False]
    assert called[0] == ("check", False)


@pytest.mark.parametrize("name", ["frail", "all"])
def test_the_command_line_isolates_for_one_command(install_frail, told: Told, tmp_path: Path, name: str) -> None:
    install_frail(manifest="")
    save_onnx(tmp_path / "m.onnx")
    path = str(tmp_path / "m.kyar")
    compile_it = ["compile", str(tmp_path / "m.onnx"), "-o", path, "--backends", "frail", "--strict"]
    for arguments, is_here in ((["--isolate", name], False), ([], True)):
        before = len(told())
        done = CliRunner().invoke(main, [*arguments, *compile_it])
        assert done.exit_code == 0, done.output
        assert [here for what, here in told()[before:] if what == "codegen"] == [is_here]
        assert ky.load(path)(X).numpy().tolist() == np.maximum(X, 0).tolist()
    refused = CliRunner().invoke(main, ["--isolate", "frial", "backends"])
    assert refused.exit_code == 1
    assert "did you mean 'frail'?" in refused.output


def test_a_misspelt_name_in_the_variable_is_refused(install_frail, monkeypatch: pytest.MonkeyPatch) -> None:
    install_frail(manifest="")
    monkeypatch.setenv("KERNELYARD_ISOLATE", "frial,")
    with pytest.raises(UnknownBackendError, match=r"KERNELYARD_ISOLATE=frial(?s:.)*did you mean 'frail'"):
        ky.compile(model("add"), backends=["frail"])


def test_a_long_codegen_that_says_so_is_waited_for(install_frail, monkeypatch) -> None:
    install_frail(CODEGEN, "[(time.sleep(0.7), progress()) for _ in range(10)]")
    monkeypatch.setenv("KERNELYARD_PLUGIN_TIMEOUT", "5")
    exe = ky.compile(model(), backends=["frail"], strict=True)
    assert [region.backend for region in exe.report.regions] == ["frail"]


def test_a_limit_of_memory(install_frail, monkeypatch) -> None:
    install_frail(CODEGEN, "np.ones(1 << 32, np.uint8)")
    monkeypatch.setenv("KERNELYARD_ISOLATE_MEMORY", "4000")
    assert_contained(ky.compile(model(), backends=["frail"]), "MemoryError")
    monkeypatch.setenv("KERNELYARD_ISOLATE_MEMORY", "much")
    with pytest.raises(OptionError, match="no number of megabytes"):
        ky.compile(model(), backends=["frail"])


def test_options_must_be_data(install_frail) -> None:
    install_frail()
    with pytest.raises(OptionError, match="options of frail, which is isolated, are no JSON"):
        ky.compile(model(), backends=["frail"], options={"frail": {"level": (3,)}})


def test_a_crash_on_the_command_line_says_where_it_was(
    install_frail: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_frail(CODEGEN, "ctypes.string_at(0)", manifest="")
    save_onnx(tmp_path / "m.onnx")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "kernelyard", "compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.kyar")]
    done = subprocess.run([*command, "--backends", "frail"], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert "fake_kernelyard_frail/plugin.py" in done.stderr
    assert not (tmp_path / "m.kyar").exists()
