"""docs/onnx-coverage.md: what it lists as failing fails, for the reasons that it states. `make test-onnx` runs the rest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SUITE = Path(__file__).with_name("backend_suite.py")
PAGE = Path(__file__).parents[3] / "docs" / "onnx-coverage.md"


def test_what_is_listed_fails_as_it_is_listed() -> None:
    command = [sys.executable, str(SUITE), "--listed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_totals_are_those_of_the_list() -> None:
    text = PAGE.read_text(encoding="utf-8")
    total, auto, none = map(int, re.findall(r"^\| all \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)[0])
    rows = re.findall(r"^\| \w+\.\w+ \| (auto|none|both) \| (.+) \|$", text, re.MULTILINE)
    assert total - auto == sum(which in ("auto", "both") for which, _ in rows)
    assert total - none == sum(which in ("none", "both") for which, _ in rows)
    assert all(reason for _, reason in rows)
    assert min(auto, none) >= 1950
