"""Each promise of docs/promises.md names tests that exist."""

from __future__ import annotations

import ast
import re

from distributions import ROOT

ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", (ROOT / "docs" / "promises.md").read_text(), re.MULTILINE)


def test_there_are_twelve():
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 13))


def test_every_test_exists():
    for _, promise, tests in ROWS:
        named = re.findall(r"`([^`]+)::(\w+)`", tests)
        assert named, promise
        for path, name in named:
            defined = {n.name for n in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(n, ast.FunctionDef)}
            assert name in defined, f"{path}::{name}"
