"""`Backend.may_refuse`: where a library on the CPU has nothing for the sizes at hand, generated kernels run."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from fake_distribution import install

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import NoImplementationError, PerformanceWarning
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate

PLUGIN = """
import os
import numpy as np
from kernelyard.errors import NoImplementationError
from kernelyard.plugins.api import Backend, FusionPattern, JSONSerializer, KernelNode, hookimpl, is_op
from kernelyard.runtime.api import BoundCall, JSONRuntime

class Serializer(JSONSerializer):
    def visit_composite(self, composite, call):
        return KernelNode("relu", [("x", composite.bindings[0].value.args[0])])

class Runtime(JSONRuntime):
    kind = "choosy"

    def build(self, graph, args, values, context):
        x, y = (arg.as_array() for arg in args)
        if len(x) > 2:
            raise NoImplementationError("two rows at most")

        def run():
            if "DEVICE_FAILS" in os.environ:
                y[...] = 77
                raise NoImplementationError("the device fell off the bus")
            np.maximum(x, 0, out=y)

        return BoundCall([run])

load = Runtime.load_from_bytes

class Choosy(Backend):
    name = "choosy"

    def patterns(self, target):
        return [FusionPattern("choosy.relu", is_op("nn.relu")(varargs=True))]

    def may_refuse(self, region):
        return True

    def codegen(self, regions, options):
        serializer = Serializer()
        return Runtime(serializer.serialize_all(regions), serializer.constants)

@hookimpl
def kernelyard_backend():
    return Choosy()
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    package = "fake_kernelyard_choosy"
    install(tmp_path, "choosy", plugin=PLUGIN, runtime=f"{package}.plugin:load", version="3.1")
    get_manager.cache_clear()
    yield
    get_manager.cache_clear()
    for module in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[module]


def test_kernels_run_where_it_refuses(tmp_path):
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("exp", b.op("nn.relu", b.input("x", (symbol("n"), 3)))))})
    compiled = ky.compile(module, backends=["choosy", "native-cpu"])
    assert_offloaded(compiled, "choosy", "choosy.relu")
    compiled.save(tmp_path / "model.kyar")
    for exe in (compiled, ky.load(tmp_path / "model.kyar")):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for rows in (2, 5, 1, 5):
                x = np.linspace(-1, 1, 3 * rows, dtype=np.float32).reshape(rows, 3)
                assert_allclose(exe(x), evaluate(module, [x])[0])
        (only,) = told
        assert "choosy does not run choosy_0: two rows at most, n = 5; these kernels run instead" in str(only.message)


def test_kernels_run_in_a_branch_where_it_refuses():
    def branch(op):
        b = FunctionBuilder()
        return b.function(b.op(op, b.input("x", (4,))), attrs={"private": True})

    b = FunctionBuilder()
    x, flag = b.input("x", (4,)), b.input("flag", (), "bool")
    chosen = b.if_(flag, "then", "otherwise", [x], TensorType((4,), "float32"))
    functions = {"main": b.function(chosen), "then": branch("nn.relu"), "otherwise": branch("exp")}
    exe = ky.compile(IRModule(functions), backends=["choosy", "native-cpu"])
    assert_offloaded(exe, "choosy", "choosy.relu")
    feed = np.array([-1, 0, 1, 2], np.float32)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):  # at first interpreted, then as one program, if it can be
            assert_allclose(exe(feed, True), np.maximum(feed, 0))
            assert_allclose(exe(feed, False), np.exp(feed))
    assert [each.category for each in told] == [PerformanceWarning]


def test_kernels_run_where_a_device_fails_between_two_runs(monkeypatch):
    b = FunctionBuilder()
    x = b.input("x", (2, 3))
    module = IRModule({"main": b.function(b.op("nn.relu", b.op("exp", b.op("nn.relu", x))), x)})
    exe = ky.compile(module, backends=["choosy", "native-cpu"])
    assert_offloaded(exe, "choosy", "choosy.relu", count=2)
    feed = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for fails in (False, False, True, True, False):
            if fails:
                monkeypatch.setenv("DEVICE_FAILS", "1")
            else:
                monkeypatch.delenv("DEVICE_FAILS", raising=False)
            for result, wanted in zip(exe(feed), evaluate(module, [feed]), strict=True):
                assert_allclose(result, wanted)
    assert {each.category for each in told} == {PerformanceWarning}
    assert "the device fell off the bus" in str(told[0].message)


def test_a_device_that_fails_without_a_fallback_is_an_error_that_says_whose(monkeypatch):
    b = FunctionBuilder()
    exe = ky.compile(IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2, 3))))}), backends=["choosy"])
    exe.fallbacks.clear()
    monkeypatch.setenv("DEVICE_FAILS", "1")
    with pytest.raises(NoImplementationError, match="fell off the bus") as caught:
        exe(np.ones((2, 3), np.float32))
    assert "run by choosy of kernelyard-choosy 3.1" in str(caught.value.where)
