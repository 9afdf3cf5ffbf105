"""Commands that signals end: exit codes as shells expect them, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx.parser
import pytest
from click.testing import CliRunner

from kernelyard.cli.main import main
from kernelyard.runtime.artifact import container

MODEL = """<ir_version: 8, opset_import: ["": 17]> net (float[2] x) => (float[2] y) { y = Exp(x) }"""
# The signal comes where it does most harm: the artifact is written, and not yet renamed.
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored,
for number in (signal.SIGTERM, signal.SIGHUP):  # and so does what runs under nohup
    signal.signal(number, signal.SIG_DFL)
from kernelyard.cli.main import main
def interrupted(descriptor):
    os.kill(os.getpid(), int(sys.argv[1]))
os.fsync = interrupted
main(sys.argv[2:])
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def run(number: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(int(number)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(("number", "code", "says"), [
    (signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM"), (signal.SIGHUP, 129, "ended by SIGHUP"),
])  # fmt: skip
def test_a_signal_leaves_nothing_and_is_the_exit_code(model: Path, number: int, code: int, says: str) -> None:
    done = run(number, "compile", str(model), "-o", str(model.with_suffix(".kyar")))
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, says)
    assert os.listdir(model.parent) == ["m.onnx"]


def test_json_says_so_too(model: Path) -> None:
    done = run(signal.SIGTERM, "compile", str(model), "-o", str(model.with_suffix(".kyar")), "--json")
    assert done.returncode == 143
    assert '"code": "interrupted"' in done.stdout


def test_what_a_killed_writer_left_is_removed_by_the_next(model: Path) -> None:
    artifact = model.with_suffix(".kyar")
    old, young, other = (model.parent / name for name in (
        ".m.kyar.0123456789ab.tmp", ".m.kyar.ba9876543210.tmp", ".m.kyar.mine.tmp",
    ))  # fmt: skip
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (time.time() - container.ABANDONED - 60,) * 2)
    result = CliRunner().invoke(main, ["compile", str(model), "-o", str(artifact)])
    assert result.exit_code == 0, result.output
    assert not old.exists()
    assert young.exists()  # its writer may be at work
    assert other.exists()  # not a name of ours


# In place of a module that the command line imports first of all.
INTERRUPTS = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_while_modules_are_imported_says_one_word(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(INTERRUPTS, encoding="utf-8")
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from kernelyard.__main__ import main; main()"
    command = [sys.executable, "-c", program, "doctor"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
