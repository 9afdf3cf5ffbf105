"""Whole networks: offloaded, right, and the same after a trip through a file and a fresh process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from networks import Network

import kernelyard as ky

BACKENDS = ["dnnl", "native-cpu"]


@pytest.fixture(scope="module")
def executable(network: Network) -> ky.Executable:
    return ky.compile(network.path, target="cpu", backends=BACKENDS)


def test_offloaded(network: Network, executable: ky.Executable) -> None:
    coverage = executable.report.coverage
    assert coverage["dnnl"]["flops_fraction"] >= 0.95, executable.report.summary
    assert "reference" not in coverage, executable.report.summary
    assert not executable.report.violations
    assert not any(module.kind == "reference" for module in executable.modules)
    assert all(entry.code and entry.message and entry.node for entry in executable.report.declined)


def test_right(network: Network, executable: ky.Executable) -> None:
    session = onnxruntime.InferenceSession(str(network.path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert [output.name for output in executable.outputs] == names
    for feeds in (*network.feeds, network.feeds[0]):  # back to the first shape: plans are kept apart
        expected = session.run(None, feeds)
        results = executable.run(feeds)
        for name, value in zip(names, expected, strict=True):
            result = np.asarray(results[name])
            assert result.shape == value.shape
            assert result.dtype == value.dtype
            assert np.abs(result - value).max() <= network.tolerance * np.abs(value).max()


RUN_SAVED = """
import json, sys
import numpy as np
from kernelyard.runtime import load

exe = load(sys.argv[1])
feeds = dict(np.load(sys.argv[2]))
results = exe.run({name.replace("|", ":"): array for name, array in feeds.items()})
np.savez(sys.argv[3], *[np.asarray(tensor) for tensor in results.values()])
print(json.dumps(sorted(sys.modules)))
"""

COMPILER = ("ir", "ops", "tir", "legalize", "patterns", "transform", "plugins", "placement", "driver", "cli", "testing")


def test_saved_runs_with_the_runtime_alone(network: Network, executable: ky.Executable, tmp_path: Path) -> None:
    artifact, feeds, results = tmp_path / "m.kyar", tmp_path / "feeds.npz", tmp_path / "results.npz"
    executable.save(artifact)
    np.savez(feeds, **{name.replace(":", "|"): array for name, array in network.feeds[0].items()})
    command = [sys.executable, "-c", RUN_SAVED, str(artifact), str(feeds), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    forbidden = [f"kernelyard.{part}" for part in COMPILER] + ["pluggy", "onnx", "click", "rich"]
    assert [name for name in loaded if name in forbidden] == []
    again = np.load(results)
    for key, tensor in zip(again.files, executable.run(network.feeds[0]).values(), strict=True):
        np.testing.assert_array_equal(again[key], np.asarray(tensor))


def test_compiled_twice_is_byte_identical(network: Network, executable: ky.Executable, tmp_path: Path) -> None:
    digests = []
    for number, exe in enumerate((executable, ky.compile(network.path, target="cpu", backends=BACKENDS))):
        exe.save(tmp_path / f"{number}.kyar")
        digests.append(hashlib.sha256((tmp_path / f"{number}.kyar").read_bytes()).hexdigest())
    assert digests[0] == digests[1]
