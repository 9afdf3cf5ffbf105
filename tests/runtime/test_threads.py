"""The processors that a process may use: affinity, and the quotas of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelyard.runtime.abi import threads

MANY = 64


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file system of control groups, empty as yet, on a machine with many processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(MANY)))
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(threads, "_OWN_CGROUPS", tmp_path / "own")
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, MANY, id="no control groups"),
        pytest.param({"own": "0::/a/b"}, MANY, id="no files"),
        pytest.param({"own": "0::/a", "cgroup/a/cpu.max": "max 100000"}, MANY, id="v2: none"),
        pytest.param({"own": "0::/a", "cgroup/a/cpu.max": "150000 100000"}, 2, id="v2: one and a half"),
        pytest.param({"own": "0::/", "cgroup/cpu.max": "400000 100000"}, 4, id="v2: in a container"),
        pytest.param({"own": "0::/a/b", "cgroup/a/cpu.max": "300000 100000"}, 3, id="v2: of the group outside"),
        pytest.param({"own": "0::/a", "cgroup/a/cpu.max": "1000 100000"}, 1, id="v2: less than one"),
        pytest.param(
            {
                "own": "5:cpu,cpuacct:/a\n4:cpuset:/c",
                "cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "250000",
                "cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "50000",
            },
            5,
            id="v1",
        ),
        pytest.param(
            {
                "own": "1:cpu:/docker/0123",
                "cgroup/cpu/cpu.cfs_quota_us": "200000",
                "cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2,
            id="v1: in a container",
        ),
        pytest.param(
            {"own": "1:cpu:/", "cgroup/cpu/cpu.cfs_quota_us": "-1", "cgroup/cpu/cpu.cfs_period_us": "100000"},
            MANY,
            id="v1: none",
        ),
        pytest.param({"own": "0::/a", "cgroup/a/cpu.max": "nonsense"}, MANY, id="a file that is no quota"),
    ],
)
def test_processors(groups: Path, files: dict[str, str], expected: int) -> None:
    write(groups, files)
    assert threads.processors() == expected


def test_affinity_counts_where_it_is_less(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(groups, {"own": "0::/", "cgroup/cpu.max": "800000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert threads.processors() == 1


@pytest.mark.parametrize(("text", "expected"), [("3", 3), ("2,1", 2), ("", MANY), ("0", MANY), ("many", MANY)])
def test_the_environment_says_how_many_threads(
    groups: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads.default_threads() == expected


@pytest.mark.parametrize(
    ("environment", "wanted", "expected"), [("", 3, 3), ("", 8, 4), ("2", None, 2), ("9", None, 4), ("", None, 4)]
)
def test_a_run_has_no_more_threads_than_processors(
    groups: Path, monkeypatch: pytest.MonkeyPatch, environment: str, wanted: int | None, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", environment)
    write(groups, {"own": "0::/", "cgroup/cpu.max": "400000 100000"})
    assert threads.threads_of_a_run(wanted) == expected
