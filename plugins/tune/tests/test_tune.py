"""compile(tune=...): the placement that is chosen, what it computes, and what becomes of the decision."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.dims import symbol
from kernelyard.driver.measured_placement import read_placements, save_placements
from kernelyard.driver.placement_cache import CACHE
from kernelyard.errors import ArtifactCorruptedError, ArtifactError, OptionError, PlacementWarning
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.installed.disk_cache import cache_size
from kernelyard.runtime.installed.processor import Processor
from kernelyard.runtime.placement_decision import PlacementDecision
from kernelyard_tune import TuneError
from kernelyard_tune.race import Race

W = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
QUICK = ky.Tuning(60, threads=1)  # it ends after a few turns


@pytest.fixture(autouse=True)
def few_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "64")
    monkeypatch.setattr("kernelyard_tune.race.MOST_TURNS", 3)
    monkeypatch.setattr("kernelyard_tune.race.BURST_SECONDS", 1e-4)


def network(weights: np.ndarray = W, rows: object = 8) -> IRModule:
    """tanh(x @ w) and then relu(that @ w)."""
    b = FunctionBuilder()
    x = b.input("x", (rows, 16))
    y = b.op("tanh", b.op("matmul", x, weights))
    return IRModule({"main": b.function(b.op("nn.relu", b.op("matmul", y, weights)))})


def expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(np.tanh(x @ W) @ W, 0)


def test_what_is_chosen_was_measured_beside_the_default_and_each_backend() -> None:
    exe = ky.compile(network(), tune=QUICK)
    x = np.ones((8, 16), np.float32)
    assert np.allclose(exe(x).numpy(), expected(x), atol=1e-4)
    decision = exe.report.decision
    assert decision is not None
    names = {timing.name for timing in decision.timings}
    assert names > {"default"}
    assert all(name in ("default", "native-cpu alone") or name.endswith(" first") for name in names)
    assert decision.timings[0].name == decision.name
    assert decision.timings[0].ratio == 1
    assert all(timing.seconds > 0 for timing in decision.timings)
    assert decision.facts["threads"] == "1"
    assert f"placement: {decision.name}" in str(exe.report)


@pytest.mark.parametrize("winner", ["default", "native-cpu alone", "dnnl first"])
def test_the_winner_of_the_race_is_what_runs(winner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(race: Race) -> object:
        return next(racer for racer in race.racers if racer.name == winner)

    monkeypatch.setattr(Race, "winner", chosen)
    monkeypatch.setattr("kernelyard_tune.tuner._list_placed", lambda _: [object()])  # keep those that are placed alike
    report = ky.compile(network(), tune=QUICK).report
    arguments = {"default": "auto", "native-cpu alone": [], "dnnl first": ["dnnl"]}
    same = ky.explain(network(), backends=arguments[winner])
    assert [node.backend for node in report.nodes] == [node.backend for node in same.nodes]
    assert report.decision is not None
    assert report.decision.name == winner


def test_a_decision_makes_the_same_bytes(tmp_path) -> None:
    tuned = ky.compile(network(), tune=QUICK)
    save_placements(tmp_path / "placement.json", [tuned.report.decision])
    again = ky.compile(network(), placement=tmp_path / "placement.json")
    assert again.to_bytes() == tuned.to_bytes()
    tuned.save(tmp_path / "model.kyar")
    assert ky.load(tmp_path / "model.kyar").report.decision == tuned.report.decision
    other_weights = ky.compile(network(W + 1), placement=tuned.report.decision)
    assert other_weights.report.decision == tuned.report.decision


def test_what_was_measured_once_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    run = Race.run

    def counted(race: Race, *arguments: Any) -> None:
        run(race, *arguments)
        measured.append(race.measurements)

    monkeypatch.setattr(Race, "run", counted)
    first = ky.compile(network(), tune=QUICK)
    assert measured[0] > 0
    again = ky.compile(network(W + 1), tune=QUICK)
    assert len(measured) == 1
    assert again.report.decision == first.report.decision
    assert ky.compile(network(), tune=QUICK).to_bytes() == first.to_bytes()
    assert cache_size(CACHE.use().folder or Path())[0] == 1
    for other in (ky.Tuning(60, threads=2), ky.Tuning(50, threads=1), dataclasses.replace(QUICK, remember=False)):
        ky.compile(network(), tune=other)
    ky.compile(network(rows=9), tune=QUICK)
    ky.compile(network(), tune=QUICK, exclude_patterns=["dnnl.pool"])
    assert len(measured) == 6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelyard.driver.measured_placement.processor", lambda: Processor("Another", frozenset(), ()))
        ky.compile(network(), tune=QUICK)
    assert len(measured) == 7


def test_a_decision_for_something_else_is_not_taken(tmp_path) -> None:
    decision = ky.compile(network(), tune=QUICK).report.decision
    assert decision is not None
    elsewhere = dataclasses.replace(decision, facts={**decision.facts, "processor": "Another CPU"})
    save_placements(tmp_path / "placement.json", [elsewhere])
    with pytest.warns(PlacementWarning, match="processor: .*, measured with Another CPU"):
        exe = ky.compile(network(), placement=tmp_path / "placement.json")
    assert exe.to_bytes() == ky.compile(network()).to_bytes()
    save_placements(tmp_path / "placement.json", [decision])  # beside the other one
    assert read_placements(tmp_path / "placement.json") == (elsewhere, decision)
    assert ky.compile(network(), placement=tmp_path / "placement.json").report.decision == decision
    with pytest.warns(PlacementWarning, match="model: "):
        ky.explain(network(rows=9), placement=decision)


def test_a_package_that_is_not_used_does_not_matter() -> None:
    facts = {"backend acme": "acme 1", "backend dnnl": "dnnl 1", "threads": "1"}
    decision = PlacementDecision("dnnl first", ("dnnl",), facts=facts)
    assert decision.misfits({**facts, "backend acme": "acme 2", "threads": "2"}) == ()
    assert decision.misfits({**facts, "backend dnnl": "dnnl 2"}) == ("backend dnnl: dnnl 2, measured with dnnl 1",)


@pytest.mark.parametrize(
    "change",
    [{"policy": "best"}, {"backends": "dnnl"}, {"timings": [{"name": "x", "seconds": -1, "ratio": 1}]}, {"facts": [1]}],
)
def test_a_malformed_file_is_refused(change: dict[str, object], tmp_path) -> None:
    path = tmp_path / "placement.json"
    save_placements(path, [PlacementDecision("default", ("dnnl",))])
    data = json.loads(path.read_text())
    data["placements"][0] |= change
    path.write_text(json.dumps(data))
    with pytest.raises(ArtifactCorruptedError):
        ky.compile(network(), placement=path)
    path.write_text("{")
    with pytest.raises(ArtifactCorruptedError):
        ky.compile(network(), placement=path)
    with pytest.raises(ArtifactError, match="cannot be read"):
        ky.compile(network(), placement=tmp_path / "no such file")


@pytest.mark.parametrize("effort", ["slow", 0, -1.0, True])
def test_efforts_are_checked(effort: object) -> None:
    with pytest.raises(OptionError, match="effort"):
        ky.compile(network(), tune=effort)  # pyright: ignore[reportArgumentType]


def test_without_a_tuner_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelyard.driver.measured_placement.load_named", lambda *_: None)
    with pytest.raises(OptionError, match="pip install kernelyard-tune"):
        ky.compile(network(), tune="quick")


def test_feeds_and_sizes() -> None:
    module = network(rows=symbol("n"))
    tuned = ky.compile(module, tune=ky.Tuning(60, threads=1, sizes={"n": 5}))
    assert tuned.report.decision is not None
    assert tuned.report.decision.facts["sizes"] == "n=5"
    fed = ky.compile(module, tune=ky.Tuning(60, threads=1, feeds={"x": np.zeros((3, 16), np.float32)}))
    assert fed.report.decision is not None
    assert fed.report.decision.facts["sizes"] == "n=1, x (3, 16)"
    for wrong, message in [
        (ky.Tuning(60, sizes={"m": 1}), "no symbolic dimension is called 'm'"),
        (ky.Tuning(60, feeds={"y": W}), "no input is called 'y'"),
        (ky.Tuning(60, feeds={"x": W[:, :3]}), "the model does not run"),
    ]:
        with pytest.raises(TuneError, match=message):
            ky.compile(module, tune=wrong)


def test_ctrl_c_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(race: Race, number: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Race, "turn", interrupted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exe = ky.compile(network(), tune=QUICK)
    assert exe.report.decision is not None
    assert exe.report.decision.name == "default"
    assert exe.report.decision.timings == ()
    assert CACHE.use().entries == 0
