"""`--campaign`: rounds of the property tests alone, at random, and what the last lines say of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import property_campaign

TESTS = """
import pytest
from hypothesis import given, settings, strategies as st

@settings(max_examples=10, derandomize=True)
@given(number=st.integers(0, 2**60))
@pytest.mark.parametrize("name", ["a", "b"])
def test_given(name, number):
    with open("seen.txt", "a") as seen:
        print(name, number, file=seen)

def test_inside(campaign):
    with open("rounds.txt", "a") as seen:
        print(campaign, file=seen)

def test_plain():
    raise AssertionError("no property")
"""


def run(folder: Path, *options: str) -> tuple[int, str]:
    (folder / "test_some.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]")
    environment = {**os.environ, "PYTHONPATH": str(Path(property_campaign.__file__).parent), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "property_campaign", *options, str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_campaign_runs_each_property_round_after_round(tmp_path: Path) -> None:
    status, output = run(tmp_path, "--campaign", "3")
    assert status == 0, output
    assert "3 of 3 property tests, 3 to 3 rounds each" in output
    assert (tmp_path / "rounds.txt").read_text().split() == ["0", "1", "2"]
    seen = (tmp_path / "seen.txt").read_text().splitlines()
    assert {line.split()[0] for line in seen} == {"a", "b"}
    assert len(set(seen)) > 30  # other examples in each round


def test_what_its_time_does_not_reach_is_named(tmp_path: Path) -> None:
    _, output = run(tmp_path, "--campaign", "3", "--campaign-minutes", "-1")
    assert "0 of 3 property tests, 0 to 0 rounds each" in output
    assert "skipped or not reached: test_some.py::test_inside" in output
    assert not (tmp_path / "rounds.txt").exists()


def test_outside_a_campaign_nothing_changes(tmp_path: Path) -> None:
    status, output = run(tmp_path)
    assert status == 1
    assert "1 failed, 3 passed" in output
    assert (tmp_path / "rounds.txt").read_text() == "None\n"
