"""The template is what it says: one installable backend of at most 150 lines that works, saved artifacts included."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

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
allowed = {"runtime", "errors", "dtypes", "dims"}
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
    assert len(files) == 8
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= MAX_LINES


def test_it_is_active_once_installed(tmp_path: Path, environment: dict[str, str]) -> None:
    main = "from kernelyard.driver.cli import main; main(['backends', '--json'])"
    shown = json.loads(python("-c", main, folder=tmp_path, environment=environment))
    found = {(info["name"], info["dist"], info["state"]) for info in shown}
    assert ("acme", "kernelyard-acme", "active") in found


def test_a_copy_under_another_name_works(root: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    page = (root / "docs" / "writing-a-backend.md").read_text(encoding="utf-8")
    commands = re.search(r"^## Copy it\n\n```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert commands is not None
    lines = [line.removeprefix("$ ") for line in commands[1].splitlines()]
    renaming = [line for line in lines if line.split()[0] in ("cp", "cd", "mv", "grep")]
    assert len(renaming) == len(lines) - 3  # then install, test, list
    script = "\n".join(renaming).replace("plugins/_template", str(root / "plugins" / "_template"), 1)
    subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, check=True)
    site = tmp_path / "site"
    install = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(site))
    copy = tmp_path / "kernelyard-yours"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *install, str(copy)], check=True, capture_output=True)
    environment["PYTHONPATH"] = os.pathsep.join([str(site), environment["PYTHONPATH"]])
    assert "3 passed" in python("-m", "pytest", "-q", "tests", folder=copy, environment=environment)


def test_its_own_tests_pass(root: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    tests = root / "plugins" / "_template" / "tests"
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null")
    assert "3 passed" in python(*arguments, str(tests), folder=tmp_path, environment=environment)


def test_what_it_compiles_runs_in_a_fresh_process_with_runtime_halves_alone(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    python("-c", COMPILE, folder=tmp_path, environment=environment)
    python("-c", RUN, folder=tmp_path, environment=environment)
