"""Backends of other libraries keep what they claim, examined by the conformance kit as vendors' packages are."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# What is examined here; the READMEs have the numbers of all cases.
CASES = {
    "onnxruntime": "L0 or (matmul and not broadcast) or (L4 and conv2d) or (L5 and graph and 3)",
    "openblas": "L0 or L1 or L2 or L4",
    "openvino": "L0 or (matmul and not broadcast) or (L4 and conv2d) or (L5 and graph and 3)",
}


@pytest.mark.parametrize("backend", CASES)
def test_it_conforms(backend: str, tmp_path: Path) -> None:
    if not find_spec(f"kernelyard_{backend}"):
        pytest.skip(f"pip install ./plugins/{backend}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    quietly = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null")
    kit = ("--pyargs", "kernelyard.testing", "--backend", backend, "-k", CASES[backend])
    command = [sys.executable, *quietly, *kit]
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
