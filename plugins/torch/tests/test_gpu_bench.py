"""`benchmarks/gpu.py` on the emulator: its way through, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kernelyard as ky
from kernelyard.errors import DeviceError

pytest.importorskip("torch")  # the benchmark's networks are PyTorch's: `make test-torch`

BENCH = Path(__file__).parents[3] / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module", autouse=True)
def _emulator() -> None:
    try:
        ky.cuda("emulator").require()
    except DeviceError as error:
        pytest.skip(f"{error.found}; {error.hint}")


def command(*options: str, results: Path) -> list[str]:
    return [sys.executable, str(BENCH), "--device", "emulator", "--quick", "--results", str(results), *options]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["rows"]


def test_a_run_that_is_killed_keeps_its_rows(tmp_path: Path) -> None:
    running = subprocess.Popen(
        command("matmul_f16", "encoder", "--engines", "native-cuda", "eager", results=tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    for line in running.stderr:
        if line.startswith("encoder"):
            pytest.fail("the second model is measured already")
        if line.startswith("matmul_f16, eager"):
            break
    running.kill()
    running.communicate()
    assert running.returncode < 0, "it ended before it was killed"
    assert [(row["model"], row["engine"]) for row in rows_of(tmp_path / "gpu.json")] == [
        ("matmul_f16", "native-cuda"),
        ("matmul_f16", "eager"),
    ]


def test_kernels_alone(tmp_path: Path) -> None:
    chosen = ("--kernels", "layer_norm", "matmul", "conv3x3_last", "--minutes", "30")
    engines = ("--engines", "kernelyard", "kernelyard-tuned", "native-cuda", "cublaslt", "eager")
    done = subprocess.run(command(*chosen, *engines, results=tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "gpu-kernels.json")
    assert [row["failure"] for row in rows if row["failure"]] == []
    assert {row["model"] for row in rows if row["engine"] == "cublaslt"} <= {"matmul"}
    for engine in ("kernelyard", "kernelyard-tuned", "native-cuda", "eager"):
        assert [row["model"] for row in rows if row["engine"] == engine] == ["layer_norm", "matmul", "conv3x3_last"]
    assert all(row["error"] < 2e-3 and row["milliseconds"] > 0 for row in rows)


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    done = subprocess.run([sys.executable, BENCH, "bert"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no model bert; there are mlp_b1," in done.stderr
