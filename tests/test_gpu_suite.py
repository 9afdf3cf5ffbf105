"""The script behind `make gpu-test`, on folders of tests made here, with and without something that answers as a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MARK = "import pytest\npytestmark = pytest.mark.gpu\n"
PASSES = "def test_passes():\n    assert 1 + 1 == 2\n"
SKIPS = "def test_skips():\n    pytest.skip('the library is missing')\n"
FAILS = "def test_fails():\n    assert 1 + 1 == 3\n"
HANGS = "def test_hangs():\n    import time\n    time.sleep(600)\n"

Suite = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """Run the script on a folder of tests for each keyword. gpu: whether an `nvidia-smi` answers."""

    def run(*options: str, gpu: bool = True, **tests: str) -> subprocess.CompletedProcess[str]:
        tools = tmp_path / "tools"
        tools.mkdir()
        smi = tools / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\n{'echo GPU 0: a fake one' if gpu else 'exit 9'}\n")
        smi.chmod(0o755)
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a GPU\n")
        folders: list[str] = []
        for plugin, text in tests.items():
            folder = tmp_path / plugin / "tests"
            folder.mkdir(parents=True)
            (folder / "test_on_gpu.py").write_text(MARK + text)
            folders.append(str(folder))
        command = [sys.executable, ROOT / "tests" / "gpu_suite.py", *folders, "--results", tmp_path / "results"]
        environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
        environment["CUDA_VISIBLE_DEVICES"] = ""  # the driver says that there is none, also where there is one
        return subprocess.run(
            [*command, "--jobs", "1", *options], env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_a_plugin_that_skips_everything_fails_where_a_gpu_answers(suite: Suite) -> None:
    done = suite(skipping=SKIPS, passing=PASSES + SKIPS)
    assert done.returncode == 1
    assert (
        "skipping: 0 run, 1 skipped; FAILED: everything was skipped, though a GPU answers (nvidia-smi)" in done.stdout
    )
    assert "passing: 1 run, 1 skipped\n" in done.stdout
    assert "the library is missing" in done.stdout


def test_where_no_gpu_answers_all_may_be_skipped(suite: Suite) -> None:
    done = suite(gpu=False, skipping=SKIPS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU answers here" in done.stdout


def test_the_others_go_on_after_a_failure(suite: Suite, tmp_path: Path) -> None:
    done = suite(failing=FAILS, empty="", passing=PASSES)
    assert done.returncode == 1
    assert "failing: 1 run, 0 skipped; FAILED: pytest ended with 1" in done.stdout
    assert "empty: 0 run, 0 skipped; FAILED: pytest ended with 5" in done.stdout
    assert "passing: 1 run, 0 skipped\n" in done.stdout
    reports = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert reports == ["empty.xml", "failing.xml", "passing.xml"]


def test_one_that_hangs_is_interrupted(suite: Suite) -> None:
    done = suite("--seconds", "4", hanging=PASSES + HANGS)
    assert done.returncode == 1
    assert "FAILED: interrupted after 4 seconds" in done.stdout


def test_workers_where_xdist_is_installed(suite: Suite) -> None:
    done = suite("--jobs", "2", passing=PASSES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bringing up nodes" in done.stdout
