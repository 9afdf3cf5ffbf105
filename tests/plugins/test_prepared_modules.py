"""`RuntimeModule.prepare`: what takes long is done at compile and at load, and not in the first run."""

from __future__ import annotations

import json
import platform
import sys

import numpy as np
import pytest
from fake_distribution import install

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import ExecutionError, PerformanceWarning
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.testing import assert_offloaded

PLUGIN = """
import os, json
from functools import partial
import numpy as np
from kernelyard.errors import NoImplementationError
from kernelyard.plugins.api import Backend, FusionPattern, JSONSerializer, KernelNode, hookimpl, is_op
from kernelyard.runtime.api import BoundCall, JSONRuntime

class Serializer(JSONSerializer):
    def visit_composite(self, composite, call):
        return KernelNode("relu", [("x", composite.bindings[0].value.args[0])])

class Runtime(JSONRuntime):
    kind = "slow"

    def prepare(self, symbol, values, threads):
        with open(os.environ["TOLD"], "a") as told:
            print(json.dumps([symbol, dict(values), threads, self.rows_of(symbol)]), file=told)
        if "FAILS" in os.environ:
            raise RuntimeError("no such engine")
        if "REFUSES" in os.environ:
            raise NoImplementationError("no engine for these sizes")

    def rows_of(self, symbol):
        graph = self.graph(symbol)
        return graph.bounds(graph.inputs[0].shape[0])

    def build(self, graph, args, values, context):
        if "REFUSES" in os.environ:
            raise NoImplementationError("no engine for these sizes")
        x, y = (arg.as_array() for arg in args)
        return BoundCall([partial(np.maximum, x, 0, out=y)])

load = Runtime.load_from_bytes

class Slow(Backend):
    name = "slow"

    def patterns(self, target):
        return [FusionPattern("slow.relu", is_op("nn.relu")(varargs=True))]

    def may_refuse(self, region):
        return "REFUSES" in os.environ

    def codegen(self, regions, options):
        serializer = Serializer()
        return Runtime(serializer.serialize_all(regions), serializer.constants)

@hookimpl
def kernelyard_backend():
    return Slow()
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Return what was prepared since the last call, each as symbol, values and threads."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    package = "fake_kernelyard_slow"
    install(tmp_path, "slow", plugin=PLUGIN, runtime=f"{package}.plugin:load", version="3.1")
    get_manager.cache_clear()

    def take():
        path = tmp_path / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    yield take
    get_manager.cache_clear()
    for module in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[module]


def model(rows):
    b = FunctionBuilder()
    return IRModule({"main": b.function(b.op("nn.relu", b.input("x", (rows, 3))))})


X = np.float32([[1, -2, 3], [-4, 5, -6]])


@pytest.mark.parametrize("rows", [2, symbol("n")], ids=str)
def test_modules_are_prepared_at_compile_and_at_load(told, tmp_path, rows):
    exe = ky.compile(model(rows), backends=["slow"])
    assert [call[:2] for call in told()] == [["slow_0", {}]]
    exe.save(tmp_path / "model.kyar")
    told()
    for count in (1, 2):
        loaded = ky.load(tmp_path / "model.kyar", threads=count)
        ((name, values, threads, _),) = told()
        assert (name, values) == ("slow_0", {})
        assert 1 <= threads <= count
        np.testing.assert_array_equal(loaded(X).numpy(), np.maximum(X, 0))
    assert told() == []  # running asks for nothing more


def test_modules_for_devices_are_prepared_too(told, tmp_path, monkeypatch):
    """Compilers of devices run on the host, and take longest of all."""
    exe = ky.compile(model(2), backends=["slow"])
    exe.save(tmp_path / "model.kyar")
    told()
    monkeypatch.setattr(type(exe.modules[exe.main.steps[0].module]), "device_kind", "cuda")
    ky.load(tmp_path / "model.kyar")
    assert [call[0] for call in told()] == ["slow_0"]


def test_a_failure_at_compile_is_a_violation_with_fallback(told, monkeypatch):
    monkeypatch.setenv("FAILS", "1")
    exe = ky.compile(model(2), backends=["slow", "native-cpu"])
    np.testing.assert_array_equal(exe(X).numpy(), np.maximum(X, 0))
    (violation,) = exe.report.violations
    assert "plugin 'slow' of kernelyard-slow 3.1" in violation.message
    assert "slow accepted these ops but could not compile them: RuntimeError at plugin.py" in violation.message
    assert "no such engine" in violation.message
    assert not exe.report.regions


@pytest.mark.parametrize(("rows", "bounds", "told_of"), [
    (symbol("n"), {"n": (1, 8)}, [1, 8]),
    (symbol("n") * 2, {"n": (2, 8)}, [4, 16]),
    (symbol("n"), {"n": (3, None)}, [3, None]),
    (symbol("n"), None, [1, None]),
    (2, None, [2, 2]),
], ids=str)  # fmt: skip
def test_modules_know_the_bounds_of_sizes(told, tmp_path, rows, bounds, told_of):
    exe = ky.compile(model(rows), backends=["slow"], bounds=bounds)
    assert_offloaded(exe, "slow", "slow.relu")
    assert [call[3] for call in told()] == [told_of]
    exe.save(tmp_path / "model.kyar")
    told()
    ky.load(tmp_path / "model.kyar")
    assert [call[3] for call in told()] == [told_of]


def test_a_refusal_at_compile_is_as_it_is_at_load_no_violation(told, monkeypatch, tmp_path):
    monkeypatch.setenv("REFUSES", "1")
    exe = ky.compile(model(2), backends=["slow", "native-cpu"], strict=True)
    assert not exe.report.violations
    (region,) = exe.report.regions
    assert region.fallback
    exe.save(tmp_path / "model.kyar")
    for program in (exe, ky.load(tmp_path / "model.kyar")):
        with pytest.warns(PerformanceWarning, match="no engine for these sizes") as caught:
            np.testing.assert_array_equal(program(X).numpy(), np.maximum(X, 0))
        assert caught[0].filename == __file__


def test_a_failure_at_load_names_the_plugin_and_a_way_out(told, tmp_path, monkeypatch):
    ky.compile(model(2), backends=["slow"]).save(tmp_path / "model.kyar")
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(ExecutionError, match="cannot prepare slow_0") as caught:
        ky.load(tmp_path / "model.kyar")
    assert "kernelyard-slow 3.1" in str(caught.value.where)
    assert "no such engine" in str(caught.value.found)
    assert "pip install --upgrade kernelyard-slow" in str(caught.value.hint)


def test_another_architecture_is_not_prepared_here(told):
    ky.explain(model(2), backends=["slow"])
    assert told() == []
    other = "x86-64" if platform.machine() == "aarch64" else "aarch64"
    exe = ky.compile(model(2), ky.Target("cpu", arch=other), backends=["slow"])
    assert [region.backend for region in exe.report.regions] == ["slow"]
    assert told() == []
