"""The backends in `examples/backends` work once pip has installed them, as vendors' packages do."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import Distribution
from packaging.requirements import Requirement
from repository import EXAMPLES

# What the conformance kit examines here; the READMEs have the numbers of all cases.
CASES = {
    "openblas": "L0 or L1 or L2 or L4",
    "openvino": "L0 or (matmul and not broadcast) or (L4 and conv2d) or (L5 and graph and 3)",
}


def missing(example: Distribution) -> list[str]:
    """The libraries that a package requires and that are not installed."""
    required = [Requirement(text).name for text in example.project["dependencies"]]
    installed = {each.name.lower() for each in importlib.metadata.distributions()}
    return [name for name in required if name.lower() not in installed]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.folder.name)
def test_an_example_passes_its_tests_and_conforms(example: Distribution, tmp_path: Path) -> None:
    if libraries := missing(example):
        pytest.skip(f"pip install {' '.join(libraries)}")
    site = tmp_path / "site"
    install = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(site))
    command = [sys.executable, "-m", "pip", "install", "-q", *install, str(example.folder)]
    subprocess.run(command, check=True, capture_output=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    environment = {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [str(site), kept.get("PYTHONPATH")]))}
    quietly = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null")
    (backend,) = example.entry_points["kernelyard"]
    kit = ("--pyargs", "kernelyard.testing", "--backend", backend, "-k", CASES[backend])
    for arguments in ((str(example.folder / "tests"),), kit):
        command = [sys.executable, *quietly, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert " passed" in done.stdout
