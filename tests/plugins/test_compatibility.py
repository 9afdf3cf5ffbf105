"""A plugin and an artifact as they were when API 2.0 came: what docs/compatibility.md promises holds for them.

Nothing in `kept_2_0/` is ever changed. Where a test here fails, the change that made it fail is one of the major version.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.testing import assert_allclose, assert_offloaded, evaluate

KEPT = Path(__file__).parent / "kept_2_0"
ARTIFACT = KEPT / "network.kyar"  # `network()` compiled for x86-64-v2, with what the plugin leaves over in native code


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin, as pip would have installed it."""
    monkeypatch.syspath_prepend(str(KEPT))
    get_manager.cache_clear()
    yield
    get_manager.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernelyard_kept"]:
        del sys.modules[name]


def network() -> IRModule:
    """tanh(relu(x @ w + b)) @ v."""
    random = np.random.default_rng(0)
    w, bias, v = (random.standard_normal(shape, dtype=np.float32) for shape in ((4, 8), (8,), (8, 2)))
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (dims.symbol("n"), 4)), w)
    hidden = b.op("tanh", b.op("nn.relu", b.op("add", product, bias)))
    return IRModule({"main": b.function(b.op("matmul", hidden, v))})


def feed() -> np.ndarray:
    return np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def test_the_kept_plugin_is_active() -> None:
    (info,) = (info for info in ky.backends() if info.name == "kept")
    assert (info.state, info.api) == ("active", ">=2.0,<3"), info.reason


def test_the_kept_plugin_compiles_runs_and_saves(tmp_path: Path) -> None:
    exe = ky.compile(network(), backends=["kept"], strict=True)
    assert_offloaded(exe, "kept", "kept.linear", count=2)
    assert_allclose(exe(feed()), evaluate(network(), [feed()])[0])
    exe.save(tmp_path / "again.kyar")
    assert_allclose(ky.load(tmp_path / "again.kyar")(feed()), evaluate(network(), [feed()])[0])


def test_the_kept_artifact_loads_and_gives_the_same_numbers() -> None:
    exe = ky.load(ARTIFACT)
    assert {module.kind for module in exe.modules} == {"kept", "native-cpu"}
    assert_allclose(exe(feed()), evaluate(network(), [feed()])[0])
    assert exe.report.coverage["kept"]["ops"] == 4


def make() -> None:
    """Write the artifact; done once, and again only for a new major version."""
    sys.path.insert(0, str(KEPT))
    ky.compile(network(), target=ky.Target("cpu", mcpu="x86-64-v2"), backends=["kept"]).save(ARTIFACT)


if __name__ == "__main__":
    make()
