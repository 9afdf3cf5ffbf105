"""What a benchmark on a GPU keeps, and when it stops: without PyTorch, and without a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from on_gpu.budget import Budget
from on_gpu.results import Column, Results, Row, rows_or_failures

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RATIO = Column("torch.compile / ours", ("compile", "max-autotune"), ("kernelyard", "kernelyard-tuned"))


def results(*rows: Row, machine: str = "a GPU") -> Results:
    made = Results(machine, RATIO)
    made.add(rows)
    return made


def test_the_table_has_times_ratios_failures_and_notes() -> None:
    made = results(
        Row("mlp", "kernelyard", 2.0, 1e-3),
        Row("mlp", "kernelyard-tuned", 1.0, 1e-4),
        Row("mlp", "compile", 5.0),
        Row("mlp", "max-autotune", 3.0, note="warm"),
        Row("gemv", "kernelyard", 0.5, rate=2.5, unit="TB/s"),
        Row("gemv", "compile", failure="OutOfMemoryError: too large"),
    )
    made.left_out.append("resnet")
    lines = made.markdown().splitlines()
    assert "| mlp | 2 | 1 | 5 | 3 | 3.00 | 1e-03 |" in lines
    assert "| gemv | 0.5 (2.5 TB/s) | - | - | - | - | 0e+00 |" in lines
    assert "- gemv, compile: OutOfMemoryError: too large" in lines
    assert "- mlp, max-autotune: warm" in lines
    assert "- left out for want of time: resnet" in lines


def test_runs_of_one_machine_share_a_file(tmp_path: Path) -> None:
    results(Row("mlp", "kernelyard", 2.0), Row("bert", "kernelyard", 7.0)).write(tmp_path, "gpu")
    later = results()
    later.take_earlier(tmp_path / "gpu.json")
    later.add([Row("mlp", "kernelyard", 1.5)])
    later.write(tmp_path, "gpu")
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [(row["model"], row["milliseconds"]) for row in rows] == [("mlp", 1.5), ("bert", 7.0)]
    assert "| bert | 7 |" in (tmp_path / "gpu.md").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]
    elsewhere = results(machine="another GPU")
    elsewhere.take_earlier(tmp_path / "gpu.json")
    assert elsewhere.rows == []


def test_a_model_that_cannot_be_measured_is_a_failure_of_each_engine_and_no_end() -> None:
    def fail() -> list[Row]:
        raise RuntimeError("CUDA error:\n an illegal memory access")

    engines = ("kernelyard", "compile")
    failed = rows_or_failures("mlp", engines, fail)
    assert [(row.model, row.engine, row.failure) for row in failed] == [
        ("mlp", engine, "RuntimeError: CUDA error: an illegal memory access") for engine in engines
    ]
    measured = [Row("mlp", engine, 2.0) for engine in engines]
    assert rows_or_failures("mlp", engines, lambda: measured) == measured
    assert results(*failed, *measured).rows == measured  # of a later run


def test_the_first_hour_measures_every_kernel() -> None:
    """In processes by kind of kernel, which the script lists."""
    listed = re.findall(
        r"^  kernels \d+ (.+)$", (BENCHMARKS / "first_run/c.sh").read_text(encoding="utf-8"), re.MULTILINE
    )
    known = (BENCHMARKS / "on_gpu/kernel_cases.py").read_text(encoding="utf-8").partition("QUICK_KERNELS")[0]
    assert " ".join(listed).split() != []
    assert sorted(" ".join(listed).split()) == sorted(re.findall(r'^    "(\w+)": partial\(', known, re.MULTILINE))


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_budget_begins_nothing_that_would_not_fit() -> None:
    clock = Clock()
    budget = Budget(2, clock)

    def task(seconds: float) -> None:
        clock.now += seconds

    assert budget.fits()
    budget.run(lambda: task(50))
    assert budget.fits()
    budget.run(lambda: task(10))
    assert budget.fits()
    budget.run(lambda: task(10.5))
    assert not budget.fits()


def test_a_budget_learns_from_what_fails() -> None:
    clock = Clock()
    budget = Budget(1, clock)

    def fail() -> None:
        clock.now += 31
        raise ValueError

    with pytest.raises(ValueError):
        budget.run(fail)
    assert not budget.fits()


def test_without_minutes_there_is_always_time() -> None:
    assert Budget(None, Clock()).fits()
