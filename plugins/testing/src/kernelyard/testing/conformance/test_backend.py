"""Tests collected by `pytest --pyargs kernelyard.testing --backend NAME`: one for each case."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kernelyard.errors import KernelyardError
from kernelyard.plugins.discovery.manager import ALLOW_VARIABLE
from kernelyard.plugins.sandbox.worker_process import Crashed, Hung, Worker
from kernelyard.testing.conformance.cases import Case, all_cases
from kernelyard.testing.conformance.claims import Claims, read_claims
from kernelyard.testing.conformance.place import plugins_for

CLAIMS = pytest.StashKey[Claims]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Generate the cases that follow from the backend's claims."""
    backend = metafunc.config.option.kernelyard_backend
    if not backend:
        raise pytest.UsageError("no backend given: run pytest --pyargs kernelyard.testing --backend NAME")
    try:
        claims = read_claims(backend)
    except KernelyardError as error:
        raise pytest.UsageError(str(error)) from error
    metafunc.config.stash[CLAIMS] = claims
    cases = all_cases(backend, claims)
    metafunc.parametrize("case", list(cases.values()), ids=list(cases))


@pytest.fixture(scope="session")
def ask(request: pytest.FixtureRequest) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Yield the verdict on a case, from a process that has the backend and no other plugin that it does not need."""
    options = request.config.option
    timeout = options.kernelyard_case_timeout
    module = "kernelyard.testing.conformance.worker"
    arguments = ["-m", module, options.kernelyard_backend, str(timeout), options.kernelyard_device]
    worker = Worker(arguments, {**os.environ, ALLOW_VARIABLE: ",".join(plugins_for(options.kernelyard_backend))})

    def verdict(name: str) -> dict[str, Any]:
        try:
            return worker.ask(name, timeout)
        except Crashed as error:
            return {"outcome": "crashed", "message": str(error), "seconds": 0.0}
        except Hung as error:
            return {"outcome": "hung", "message": str(error), "seconds": timeout}

    yield verdict
    worker.close()


def test_case(case: Case, ask: Callable[[str], dict[str, Any]], request: pytest.FixtureRequest) -> None:
    """Check that the case holds, or that a gap says why not."""
    __tracebackhide__ = True
    verdict = ask(case.name)
    outcome, message = verdict["outcome"], verdict["message"]
    gap = request.config.stash[CLAIMS].gap_of(case.name)
    request.node.user_properties.append(
        ("kernelyard", {"case": case.name, "op": case.op, "dtype": case.dtype, **verdict})
    )
    if outcome == "nothing":
        pytest.skip(message)
    if gap is None:
        if outcome != "passed":
            pytest.fail(f"{case.name} {outcome}: {message}", pytrace=False)
        return
    if outcome == "passed":
        pytest.fail(f"the gap {gap.cases!r} has closed: {case.name} holds; remove it", pytrace=False)
    if outcome != gap.outcome:
        pytest.fail(f"the gap {gap.cases!r} says {gap.outcome}, but it {outcome}: {message}", pytrace=False)
    pytest.xfail(gap.reason)
