"""The template is what it says: one installable backend of at most 150 lines that works, saved artifacts included."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

MAX_LINES = 150
COMPILE = """
import numpy as np
import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_offloaded

b = FunctionBuilder()
x = b.input("x", (symbol("n"), 3))
total = b.op("add", b.op("matmul", x, np.eye(3, 2, dtype=np.float32)), np.float32([1, -9]))
exe = ky.compile(IRModule({"main": b.function(b.op("floor", b.op("nn.relu", total)))}), backends=["acme"])
assert_offloaded(exe, "acme", "acme.linear", count=1)
exe.save("layer.kyar")
"""
RUN = """
import sys
import numpy as np
import kernelyard as ky

exe = ky.load("layer.kyar")
result = exe(np.float32([[1.5, 2, 3], [4, 5, 6]])).numpy()
assert result.tolist() == [[2.0, 0.0], [5.0, 0.0]], result
assert exe.report.coverage["acme"]["ops"] == 3
allowed = {"lazy", "records", "cached_property", "variables", "runtime", "errors", "dtypes", "dims"}
loaded = {name.split(".")[1] for name in sys.modules if name.startswith("kernelyard.")}
assert loaded <= allowed, loaded
assert "kernelyard_acme.runtime" in sys.modules
assert not {"pluggy", "kernelyard_acme.codegen", "kernelyard_acme.patterns"} & set(sys.modules)
"""


def python(*arguments: str, folder: Path, environment: dict[str, str]) -> str:
    """What a fresh Python process prints; it must succeed."""
    command = [sys.executable, "-W", "error::UserWarning", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_short(root: Path) -> None:
    folder = root / "plugins" / "_template"
    files = [path for suffix in ("py", "toml") for path in folder.rglob(f"*.{suffix}")]
    assert len(files) == 9
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= MAX_LINES


def test_it_is_active_once_installed(tmp_path: Path, environment: dict[str, str]) -> None:
    main = "from kernelyard.cli.main import main; main(['backends', '--json'])"
    shown = json.loads(python("-c", main, folder=tmp_path, environment=environment))
    found = {(info["name"], info["dist"], info["state"]) for info in shown}
    assert ("acme", "kernelyard-acme", "active") in found


@pytest.mark.parametrize("name", ["yours", "my-lib"])
def test_a_new_backend_works(name: str, root: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """What the page says is done: written, installed, tested, examined, listed."""
    page = (root / "docs" / "writing-a-backend.md").read_text(encoding="utf-8")
    commands = re.search(r"^## Create a package\n\n```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert commands is not None
    lines = [line.removeprefix("$ ").replace("yours", name) for line in commands[1].splitlines()]
    assert [line.split()[0] for line in lines] == ["kernelyard", "cd", "pip", "pytest", "pytest", "kernelyard"]
    main = "import sys; from kernelyard.cli.main import main; main(sys.argv[1:])"
    assert lines[0] == f"kernelyard new-backend {name}"
    python("-c", main, *lines[0].split()[1:], folder=tmp_path, environment=environment)
    package, site = tmp_path / f"kernelyard-{name}", tmp_path / "site"
    install = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(site))
    command = [sys.executable, "-m", "pip", "install", "-q", *install, str(package)]
    subprocess.run(command, check=True, capture_output=True)
    environment["PYTHONPATH"] = os.pathsep.join([str(site), environment["PYTHONPATH"]])
    assert "3 passed" in python("-m", *lines[3].split(), "-q", folder=package, environment=environment)
    assert " passed" in python("-m", *lines[4].split(), "-q", "-k", "L0 or L4", folder=package, environment=environment)
    listed = json.loads(python("-c", main, *lines[5].split()[1:], "--json", folder=package, environment=environment))
    assert (name, "active") in {(info["name"], info["state"]) for info in listed}


def test_its_own_tests_pass(root: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    tests = root / "plugins" / "_template" / "tests"
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null")
    assert "3 passed" in python(*arguments, str(tests), folder=tmp_path, environment=environment)


def test_what_it_compiles_runs_in_a_fresh_process_with_runtime_halves_alone(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    python("-c", COMPILE, folder=tmp_path, environment=environment)
    python("-c", RUN, folder=tmp_path, environment=environment)
