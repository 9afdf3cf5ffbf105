"""Shells complete values of options, without importing any plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = "import sys; from kernelyard.cli.main import main; main(prog_name='kernelyard')"


def completed(*words: str) -> list[str]:
    """Return what bash is offered for the last word."""
    environment = {"COMP_WORDS": " ".join(("kernelyard", *words)), "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE],
        env={**os.environ, **environment, "_KERNELYARD_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=False,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("compile", "--backends", "dn"), ["dnnl"]),
        (("compile", "--backends", "dnnl,native-cp"), ["dnnl,native-cpu"]),
        (("compile", "--backends", "a"), ["auto"]),
        (("bench", "--precision", "int"), ["int4_weights", "int8_weights"]),
        (("explain", "--target", "cp"), ["cpu"]),
        (("doc",), ["doctor"]),
    ],
)
def test_values_are_offered(words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(*words) == offered


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full: Linux has one")
@pytest.mark.parametrize("arguments", [["--help"], ["cache", "--json"]])
def test_a_full_disk_is_said_without_a_traceback(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "kernelyard", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "the output cannot be written: No space left on device\n")
