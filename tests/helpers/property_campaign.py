"""`pytest --campaign N`: run property tests alone, at random, round after round, for an hour or another time.

A round is every property test with as many examples as usual, so that slow ones are run as often as the others. What is
left of N rounds when the time is over is left out; the last lines of a run say how many rounds there were.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

SETTINGS = "_hypothesis_internal_use_settings"  # of a property test; Hypothesis has no public name for this
ROUND = "campaign"  # the parameter that says which round
KNOWN = pytest.StashKey[set[str]]()  # the property tests of a campaign, by their names without the round
ENDS = pytest.StashKey[float]()  # by `time.monotonic`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--campaign", type=int, metavar="N", help="run property tests alone, at random, up to N times each"
    )
    parser.addoption(
        "--campaign-minutes", type=float, default=60, metavar="M", help="begin no test of a campaign later"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[KNOWN] = set()


@pytest.fixture
def campaign() -> int | None:
    """Return the number of a campaign's round, from 0, for tests that define a property inside; None outside."""
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In a campaign, make N tests of each property test, one for each round."""
    rounds = metafunc.config.getoption("--campaign", None)
    if not rounds:
        return
    if getattr(metafunc.function, "is_hypothesis_test", False) and ROUND not in metafunc.fixturenames:
        metafunc.fixturenames.append(ROUND)
    if ROUND in metafunc.fixturenames:
        metafunc.parametrize(ROUND, range(rounds), ids=[f"round{number}" for number in range(rounds)])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a campaign, keep the property tests, round after round, and draw their examples at random."""
    if not config.getoption("--campaign", None):
        return
    chosen = [item for item in items if _round(item) is not None]
    config.hook.pytest_deselected(items=[item for item in items if _round(item) is None])
    items[:] = sorted(chosen, key=lambda item: _round(item) or 0)
    examples = DirectoryBasedExampleDatabase(config.rootpath / ".hypothesis" / "examples")
    for function in {item.function for item in chosen if isinstance(item, pytest.Function)}:
        given: settings | None = getattr(function, SETTINGS, None)
        if given is not None:
            setattr(function, SETTINGS, settings(given, derandomize=False, database=examples, print_blob=True))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which property tests there are; where workers run them, the next function does."""
    _note(session.config, (item.nodeid for item in session.items))


# pytest-xdist, where it is, calls this in the process that gathers results.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    _note(node.config, ids)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave out what a campaign has not begun in its time, which starts with its first test."""
    if not item.config.getoption("--campaign", None):
        return None
    now = time.monotonic()
    ends = item.config.stash.setdefault(ENDS, now + 60 * item.config.getoption("--campaign-minutes"))
    return True if now > ends else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how much of a campaign was run."""
    if not config.getoption("--campaign", None):
        return
    reports = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    rounds = Counter(dict.fromkeys(config.stash[KNOWN], 0))
    rounds.update(_property(report.nodeid) for report in reports if report.when == "call")
    terminalreporter.section("campaign")
    left = sorted(name for name, count in rounds.items() if not count)
    fewest, most = min(rounds.values(), default=0), max(rounds.values(), default=0)
    done = len(rounds) - len(left)
    terminalreporter.line(f"{done} of {len(rounds)} property tests, {fewest} to {most} rounds each")
    for name in left:
        terminalreporter.line(f"skipped or not reached: {name}")


def _round(item: pytest.Item) -> int | None:
    """Return which round of a campaign a test is part of; None for what is no property test."""
    return item.callspec.params.get(ROUND) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None


def _property(name: str) -> str:
    """Return the name of a property test without its round."""
    return re.sub(r"-?round\d+(?=[-\]])", "", name).replace("[-", "[").removesuffix("[]")


def _note(config: pytest.Config, ids: Iterable[str]) -> None:
    config.stash[KNOWN].update(map(_property, ids))
