"""scenarios.md: which test holds each scenario; with `--update-golden` its tables are written anew."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = Path(__file__).with_name("scenarios.md")
TABLE = re.compile(r"(<!-- generated: scenarios in (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
TEST = re.compile(r"`((?:tests|plugins)/[^`]+\.py)::(\w+)`")


def scenarios(path: Path) -> Iterator[tuple[str, str]]:
    """The entries of a test module's `SCENARIOS`: what the scenario is called, and the name of its test."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "SCENARIOS" for target in targets):
            assert isinstance(statement, ast.Assign)
            assert isinstance(statement.value, ast.Dict)
            for key, value in zip(statement.value.keys, statement.value.values, strict=True):
                assert isinstance(key, ast.Constant)
                assert isinstance(value, ast.Name)
                yield str(key.value), value.id


def table(folder: str) -> str:
    rows = ["| scenario | test |", "|---|---|"]
    for path in sorted((ROOT / folder).rglob("test_*.py")):
        rows += [f"| {name} | `{path.relative_to(ROOT)}::{test}` |" for name, test in scenarios(path)]
    return "\n".join(rows)


def test_the_tables_are_what_the_tests_say(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    now = TABLE.sub(lambda found: f"{found[1]}\n{table(found[2])}\n\n{found[3]}", text)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(now, encoding="utf-8")
        return
    assert text == now, "differs from the tests; pytest plugins/tvm-compat/tests --update-golden rewrites it"


def test_every_test_named_is_there() -> None:
    named = TEST.findall(PAGE.read_text(encoding="utf-8"))
    assert named
    for path, test in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {test}\(", source, re.MULTILINE), f"{path} has no {test}"
