"""`--json`: stdout is JSON and nothing else, whatever a plugin prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_distribution import GOOD_PLUGIN, install

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule

BANNER = """
import ctypes, os
os.write(1, b"a banner by a system call\\n")
ctypes.CDLL(None).printf(b"a banner by the C library\\n")
print("a banner by Python")
"""
PROBE = """def probe(self):
            __import__("os").write(1, b"a banner in the probe\\n")

        def patterns"""
COMMANDS = {
    "backends": ["backends"],
    "doctor": ["doctor"],
    "explain": ["explain", "m.npy"],
    "inspect": ["inspect", "m.kyar"],
    "run": ["run", "m.kyar"],
    "bench": ["bench", "m.kyar"],
    "new-backend": ["new-backend", "yours"],
    "no such file": ["compile", "absent.onnx"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact, and a plugin that prints wherever it can."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "loud", plugin=BANNER + GOOD_PLUGIN.replace("def patterns", PROBE))
    b = FunctionBuilder()
    ky.compile(IRModule({"main": b.function(b.op("exp", b.input("x", (2,))))}), backends=[]).save(folder / "m.kyar")
    np.save(folder / "m.npy", np.zeros(2))
    return folder


@pytest.mark.parametrize("trial", ["0", "1"])
@pytest.mark.parametrize("name", COMMANDS)
def test_stdout_is_json_alone(folder: Path, tmp_path: Path, name: str, trial: str) -> None:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    variables = {
        "PYTHONPATH": path,
        "KERNELYARD_PLUGINS": "loud,native-cpu,llvm",  # each is tried in a process of its own, in every test
        "KERNELYARD_PLUGIN_TRIAL": trial,
        "KERNELYARD_CACHE_DIR": str(tmp_path / "cache"),
    }
    arguments = [str(folder / word) if word.startswith("m.") else word for word in COMMANDS[name]]
    command = [sys.executable, "-W", "ignore", "-m", "kernelyard", *arguments, "--json"]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert json.loads(done.stdout), done.stderr
    if name in ("backends", "doctor"):
        for banner in ("a system call", "the C library", "Python", "the probe"):
            assert banner in done.stderr
