"""The tests that need a GPU, one run of pytest per plugin, so that one that fails or hangs costs no other.

    python tests/gpu_suite.py [FOLDER ...] [--results FOLDER] [--jobs 12] [--seconds 200] [-k EXPRESSION]

FOLDER: of tests; of every plugin that has a `test_on_gpu.py`, unless said otherwise. Each run leaves PLUGIN.xml (junit)
among the results. Where a GPU answers, a plugin that skips all its tests fails: something is missing that the reasons
name. Where none answers everything is skipped, and that is said.

A script and not a line of the Makefile: it reads the numbers of the junit files, and its rules have tests of their own
(`tests/test_gpu_suite.py`).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GRACE_SECONDS = 20  # for pytest to report what it had when it is interrupted


@dataclass(frozen=True)
class Outcome:
    """How the run of a plugin ended. failure: why it counts as failed, if it does."""

    plugin: str
    tests: int
    skipped: int
    failure: str = ""

    def __str__(self) -> str:
        words = f"{self.plugin}: {self.tests - self.skipped} run, {self.skipped} skipped"
        return f"{words}; FAILED: {self.failure}" if self.failure else words


def gpu_that_answers() -> str:
    """What a GPU answers to: nvidia-smi, or the driver's library; empty where there is none."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
        if listed.returncode == 0 and "GPU" in listed.stdout:
            return "nvidia-smi"
    except (OSError, subprocess.TimeoutExpired):
        pass  # the driver is asked next
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    count = ctypes.c_int()
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value
    return "libcuda" if found else ""


def pytest_command(folder: Path, report: Path, jobs: int, chosen: str) -> list[str]:
    """The call of pytest for a folder of tests; in parallel where pytest-xdist is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-rs", f"--junitxml={report}", str(folder)]
    if chosen:
        command += ["-k", chosen]
    if jobs > 1 and importlib.util.find_spec("xdist"):
        command += ["-n", str(jobs), "--dist", "loadgroup"]
    return command


def exit_status(command: Sequence[str], seconds: float | None) -> int | None:
    """The exit status of a command; None where it was interrupted after so many seconds."""
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def counted(report: Path) -> tuple[int, int]:
    """Tests, and skipped ones, of a junit file."""
    if not report.exists():
        return 0, 0
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    return sum(int(suite.get("tests", 0)) for suite in suites), sum(int(suite.get("skipped", 0)) for suite in suites)


def failure_of(status: int | None, tests: int, skipped: int, gpu: str, seconds: float | None) -> str:
    """Why a run failed; empty where it did not."""
    if status is None:
        return f"interrupted after {seconds:g} seconds"
    if status:
        return f"pytest ended with {status}"
    if gpu and tests == skipped:
        return f"everything was skipped, though a GPU answers ({gpu})"
    return ""


def run(folder: Path, args: argparse.Namespace, gpu: str) -> Outcome:
    """Run the tests of a folder."""
    plugin = folder.resolve().parent.name
    report = args.results / f"{plugin}.xml"
    report.unlink(missing_ok=True)
    print(f"=== {plugin}", flush=True)
    status = exit_status(pytest_command(folder, report, args.jobs, args.chosen), args.seconds)
    tests, skipped = counted(report)
    return Outcome(plugin, tests, skipped, failure_of(status, tests, skipped, gpu, args.seconds))


def main() -> int:
    """See the module's text."""
    # A shell's background jobs ignore it, and pytest would not hear that it is interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--results", type=Path, default=Path(os.environ.get("OUT") or ROOT / "gpu-results"))
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seconds", type=float, help="for each plugin")
    parser.add_argument("-k", dest="chosen", default="", help="pytest's -k")
    args = parser.parse_args()
    args.results = args.results.resolve()
    args.results.mkdir(parents=True, exist_ok=True)
    gpu = gpu_that_answers()
    folders = args.folders or [path.parent for path in sorted(ROOT.glob("plugins/*/tests/test_on_gpu.py"))]
    outcomes = [run(folder.resolve(), args, gpu) for folder in folders]
    print("===", f"a GPU answers ({gpu})" if gpu else "no GPU answers here, so that all is skipped")
    print(*outcomes, sep="\n", flush=True)
    return 1 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
