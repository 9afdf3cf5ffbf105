"""Budgets of tuning: there is time to compile and to run by a clock that moves as the test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelyard as ky
import kernelyard.ops
from kernelyard.driver.measured_placement import TuneRequest
from kernelyard.driver.placement_cache import remember
from kernelyard.errors import ExecutionError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.placement_decision import PlacementDecision, Timing
from kernelyard_tune import tuner
from kernelyard_tune.budget import LEAST_RACE, Budget
from kernelyard_tune.candidates import likely_first
from kernelyard_tune.tuner import facts_of_run

W = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
SETTINGS = ky.Tuning(60, threads=1)


@pytest.fixture(autouse=True)
def few_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "64")
    monkeypatch.setattr("kernelyard_tune.race.MOST_TURNS", 2)
    monkeypatch.setattr("kernelyard_tune.race.BURST_SECONDS", 1e-4)


def network() -> IRModule:
    """relu(tanh(x @ w) @ w)."""
    b = FunctionBuilder()
    y = b.op("tanh", b.op("matmul", b.input("x", (8, 16)), W))
    return IRModule({"main": b.function(b.op("nn.relu", b.op("matmul", y, W)))})


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[str]]:
    """Return what makes each compile take so many seconds, and lists what is compiled."""

    def taking(seconds: float) -> list[str]:
        clock, names = Clock(), list[str]()
        compile_with = TuneRequest.__init__

        def request(self: TuneRequest, *given: Any) -> None:
            *others, compiler = given

            def counted(decision: PlacementDecision) -> Executable:
                clock.now += seconds
                names.append(decision.name)
                return compiler(decision)

            compile_with(self, *others, counted)

        monkeypatch.setattr(TuneRequest, "__init__", request)
        monkeypatch.setattr(tuner, "Budget", lambda seconds: Budget(seconds, clock))
        return names

    return taking


def decision_of(tuning: ky.Tuning = SETTINGS) -> PlacementDecision:
    found = ky.compile(network(), tune=tuning).report.decision
    assert found is not None
    return found


def test_compiling_ends_where_the_race_would_have_no_time(compiles: Callable[[float], list[str]]) -> None:
    compiled = compiles(20)  # of 60 seconds, a third of which the race keeps
    decision = decision_of()
    assert compiled == ["default", "native-cpu alone"]
    assert decision.untried[0] == "dnnl first"
    assert not {timing.name for timing in decision.timings} & set(decision.untried)
    assert decision.lines(200)[-1].startswith("not tried: dnnl first")
    assert PlacementDecision.from_json(decision.to_json()) == decision
    assert decision_of() == decision  # as it is remembered


def test_the_default_is_compiled_whatever_it_takes(compiles: Callable[[float], list[str]]) -> None:
    compiled = compiles(1000)
    decision = decision_of()
    assert compiled == ["default"]
    assert decision.name == "default"
    assert [timing.name for timing in decision.timings] == ["default"]
    assert "native-cpu alone" in decision.untried


def test_what_there_is_time_for_is_all_tried(compiles: Callable[[float], list[str]]) -> None:
    compiled = compiles(0)
    decision = decision_of()
    assert decision.untried == ()
    assert {"default", "native-cpu alone", "dnnl first"} <= set(compiled)
    assert "not tried" not in "\n".join(decision.lines())


def test_a_candidate_that_does_not_run_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = tuner._caller

    def refuses(feeds: Any) -> None:
        raise ExecutionError("no memory")

    def failing(executable: Executable) -> Callable[[Any], object]:
        return refuses if any(node.backend == "dnnl" for node in executable.report.nodes) else caller(executable)

    monkeypatch.setattr(tuner, "_caller", failing)
    decision = decision_of()
    assert decision.name == "default"
    assert "dnnl first" not in {timing.name for timing in decision.timings} | set(decision.untried)


def test_ctrl_c_while_compiling_says_what_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    add = tuner._Tuner.add

    def interrupted(self: Any, decision: PlacementDecision) -> None:
        if decision.name == "dnnl first":
            raise KeyboardInterrupt
        add(self, decision)

    monkeypatch.setattr(tuner._Tuner, "add", interrupted)
    decision = decision_of()
    assert decision.name == "default"
    assert "dnnl first" in decision.untried
    assert "native-cpu alone" not in decision.untried


def test_what_won_for_other_models_is_tried_first(
    monkeypatch: pytest.MonkeyPatch, compiles: Callable[[float], list[str]]
) -> None:
    seen: list[TuneRequest] = []
    monkeypatch.setattr(tuner, "recall", lambda facts, remote: None)
    monkeypatch.setattr(tuner, "facts_of_run", lambda request: seen.append(request) or facts_of_run(request))
    compiles(0)
    decision_of()
    timings = (Timing("dnnl first", 1.0, 1.0), Timing("default", 1.1, 1.1), Timing("native-cpu alone", 1.5, 1.5))
    facts = {**facts_of_run(seen[0]), "model": "another"}
    remember([PlacementDecision("dnnl first", ("dnnl",), timings=timings, facts=facts)])
    compiled = compiles(20)
    assert "native-cpu alone" in decision_of().untried
    assert compiled == ["default", "dnnl first"]


def test_another_machine_or_number_of_threads_says_nothing_of_the_order() -> None:
    a, b = PlacementDecision("a", ()), PlacementDecision("b", ())
    timings = (Timing("b", 1.0, 1.0), Timing("a", 1.5, 1.5))
    facts = {"threads": "1", "processor": "p"}
    known = PlacementDecision("b", (), timings=timings, facts=facts)
    at_sizes = replace(known, timings=(), by_size=(replace(known, facts={}, sizes={"n": 1}),))
    assert likely_first([a, b], [known], facts) == [b, a]
    assert likely_first([a, b], [at_sizes], facts) == [b, a]
    assert likely_first([a, b], [known], {**facts, "threads": "2"}) == [a, b]
    assert likely_first([a, b], [known], {**facts, "processor": "q"}) == [a, b]


@given(
    seconds=st.floats(1, 100),
    each=st.floats(0.001, 50),
    calls=st.lists(st.floats(1e-6, 5), min_size=1, max_size=3),
)
def test_compiling_leaves_the_race_its_time(seconds: float, each: float, calls: list[float]) -> None:
    clock = Clock()
    budget = Budget(seconds, clock, calls=calls)
    count = 0
    while budget.may_compile(count + 1) and count < 20:
        with budget.compiling():
            clock.now += each
        count += 1
    first = each if count else 0  # the first one's time is not known before
    assert budget.left >= budget.race_seconds(count) - first or not count
    assert clock.now <= seconds * (1 - LEAST_RACE) + first
