"""Blobs of modules: members of an artifact with a token, which is asked at load and by `inspect`."""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import pytest
from click.testing import CliRunner
from fake_distribution import install

import kernelyard as ky
from kernelyard.cli.main import main
from kernelyard.errors import PerformanceWarning
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.plugins.discovery.manager import get_manager

PLUGIN = """
import os
from functools import partial
import numpy as np
from kernelyard.plugins.api import Backend, FusionPattern, JSONSerializer, KernelNode, hookimpl, is_op
from kernelyard.runtime.api import BoundCall, JSONRuntime

class Serializer(JSONSerializer):
    def visit_composite(self, composite, call):
        return KernelNode("relu", [("x", composite.bindings[0].value.args[0])])

class Runtime(JSONRuntime):
    kind = "blobby"
    engine = None

    def compatibility(self):
        return "engine " + os.environ["ENGINE"]

    def blobs(self):
        return {"relu": b"compiled by " + os.environ["ENGINE"].encode(), "empty": b""}

    def fit(self, token):
        return "usable" if token == "engine 1" and os.environ["ENGINE"] == "2" else super().fit(token)

    def restore(self, blobs):
        if "BROKEN" in os.environ:
            raise RuntimeError("no such format")
        assert all(blob.readonly for blob in blobs.values())
        self.engine = bytes(blobs["relu"])

    def build(self, graph, args, values, context):
        x, y = (arg.as_array() for arg in args)
        return BoundCall([partial(np.maximum, x, 0, out=y)])

load = Runtime.load_from_bytes

class Blobby(Backend):
    name = "blobby"

    def patterns(self, target):
        return [FusionPattern("blobby.relu", is_op("nn.relu")(varargs=True))]

    def codegen(self, regions, options):
        serializer = Serializer()
        return Runtime(serializer.serialize_all(regions), serializer.constants)

@hookimpl
def kernelyard_backend():
    return Blobby()
"""
X = np.float32([[1, -2, 3], [-4, 5, -6]])


@pytest.fixture
def artifact(tmp_path, monkeypatch):
    """An artifact with blobs of engine 1."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ENGINE", "1")
    package = "fake_kernelyard_blobby"
    install(tmp_path, "blobby", plugin=PLUGIN, runtime=f"{package}.plugin:load")
    get_manager.cache_clear()
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2, 3))))})
    ky.compile(module, backends=["blobby"]).save(tmp_path / "m.kyar")
    yield tmp_path / "m.kyar"
    get_manager.cache_clear()
    for module in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[module]


def inspected(path):
    done = CliRunner().invoke(main, ["inspect", str(path), "--json"])
    assert done.exit_code == 0, done.output
    (module,) = json.loads(done.stdout)["modules"]
    return module


def test_blobs_that_fit_are_restored(artifact):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exe = ky.load(artifact)
    assert exe.modules[0].engine == b"compiled by 1"
    np.testing.assert_array_equal(exe(X).numpy(), np.maximum(X, 0))
    module = inspected(artifact)
    assert module["blobs"] == {"relu": 13, "empty": 0}
    assert (module["compatibility"], module["fit"]) == ("engine 1", "optimal")
    assert "2 blobs, 0.0 MB, for engine 1: optimal" in CliRunner().invoke(main, ["inspect", str(artifact)]).stdout


@pytest.mark.parametrize(("engine", "fit", "restored"), [("2", "usable", b"compiled by 1"), ("3", "unusable", None)])
def test_blobs_of_another_engine_are_told(artifact, monkeypatch, engine, fit, restored):
    monkeypatch.setenv("ENGINE", engine)
    with pytest.warns(
        PerformanceWarning, match=f"blobby of kernelyard-blobby 1.0: blobs for 'engine 1' are {fit} here"
    ):
        exe = ky.load(artifact)
    assert exe.modules[0].engine == restored
    np.testing.assert_array_equal(exe(X).numpy(), np.maximum(X, 0))
    assert inspected(artifact)["fit"] == fit


def test_blobs_that_cannot_be_read_are_left(artifact, monkeypatch):
    monkeypatch.setenv("BROKEN", "1")
    with pytest.warns(PerformanceWarning, match="no such format") as caught:
        exe = ky.load(artifact)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(exe(X).numpy(), np.maximum(X, 0))


def test_inspect_needs_no_plugin(artifact, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[1:])
    assert inspected(artifact)["fit"].startswith("unknown here: the artifact needs the runtime 'blobby'")
