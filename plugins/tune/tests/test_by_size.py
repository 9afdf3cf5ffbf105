"""Measuring at several sizes: the placement at each, one artifact, and the choice among them at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import kernelyard as ky
import kernelyard.ops
from kernelyard.cli.main import main
from kernelyard.dims import symbol
from kernelyard.driver.measured_placement import read_placements, save_placements
from kernelyard.errors import ArtifactCorruptedError, LibraryWarning
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.execute.virtual_machine import VirtualMachine
from kernelyard.runtime.placement_decision import PlacementDecision
from kernelyard_tune.race import Race

W = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
SMALL, LARGE = {"n": 4}, {"n": 64}


@pytest.fixture(autouse=True)
def few_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELYARD_CACHE_MB", "64")
    monkeypatch.setattr("kernelyard_tune.race.MOST_TURNS", 3)
    monkeypatch.setattr("kernelyard_tune.race.BURST_SECONDS", 1e-4)


@pytest.fixture
def native_where_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default, which is generated kernels here, win the first race, and dnnl the second."""
    winners = iter(["default", "dnnl first"])

    def chosen(race: Race) -> list[object]:
        name = next(winners)
        return [racer for racer in race.racers if racer.name == name]

    monkeypatch.setattr(Race, "winners", chosen)


def network(weights: np.ndarray = W) -> IRModule:
    """relu(tanh(x @ w) @ w), x of shape (n, k), w of shape (k, k)."""
    b = FunctionBuilder()
    y = b.op("tanh", b.op("matmul", b.input("x", (symbol("n"), len(weights))), weights))
    return IRModule({"main": b.function(b.op("nn.relu", b.op("matmul", y, weights)))})


def by_size() -> PlacementDecision:
    small = PlacementDecision("native-cpu alone", (), sizes=SMALL)
    large = PlacementDecision("dnnl first", ("dnnl",), sizes=LARGE)
    return replace(small, sizes={}, by_size=(small, large))


def check(run: Callable[[np.ndarray], Any], rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 16)).astype(np.float32)
    assert np.allclose(run(x).numpy(), np.maximum(np.tanh(x @ W) @ W, 0), atol=1e-4)


def kinds(exe: ky.Executable) -> set[str]:
    return {module.kind for module in exe.modules}


def test_each_size_has_the_placement_that_won_there(native_where_small: None, tmp_path: Path) -> None:
    exe = ky.compile(network(), tune=ky.Tuning(60, threads=1, sizes=[SMALL, LARGE]))
    assert kinds(exe.at_sizes({"n": 15})) == {"native-cpu"}
    assert "dnnl" in kinds(exe.at_sizes({"n": 17}))
    for rows in (1, 15, 16, 17, 300, 2, 300):
        check(exe, rows)
    decision = exe.report.decision
    assert decision is not None
    assert [(dict(each.sizes), each.name) for each in decision.by_size] == [
        (SMALL, "default"),
        (LARGE, "dnnl first"),
    ]
    assert all(each.timings[0].ratio == 1 for each in decision.by_size)
    assert decision.facts["sizes"] == "n=4; n=64"
    lines = str(exe.report).splitlines()
    assert any(line.startswith("n=64") and "dnnl first" in line for line in lines)
    save_placements(tmp_path / "placement.json", [decision])
    assert read_placements(tmp_path / "placement.json") == (decision,)
    again = ky.compile(network(), placement=tmp_path / "placement.json")
    assert again.to_bytes() == exe.to_bytes()
    assert ky.compile(network(), tune=ky.Tuning(60, threads=1, sizes=[SMALL, LARGE])).to_bytes() == exe.to_bytes()


def test_an_artifact_keeps_the_choice(tmp_path: Path) -> None:
    exe = ky.compile(network(), placement=by_size())
    exe.save(tmp_path / "model.kyar")
    loaded = ky.load(tmp_path / "model.kyar")
    assert loaded.to_bytes() == exe.to_bytes()
    assert "dnnl" in kinds(loaded.at_sizes(LARGE))
    assert loaded.at_sizes(SMALL) is loaded
    assert "at sizes near n=64" in loaded.inspect()
    for rows in (1, 300):
        check(loaded, rows)
    assert loaded.recent_sizes == ({"n": 1}, {"n": 300})
    inspected = CliRunner().invoke(main, ["inspect", str(tmp_path / "model.kyar")]).output.splitlines()
    assert inspected.index("at sizes near n=4") < inspected.index("at sizes near n=64")
    with pytest.warns(LibraryWarning, match="measured at n=4"):
        loaded.export_library(tmp_path / "model.so")
    check(ky.load(tmp_path / "model.so"), 300)


def test_weights_that_placements_share_are_kept_once() -> None:
    one = PlacementDecision("dnnl first", ("dnnl",), sizes=SMALL)
    other = PlacementDecision("dnnl before native-cpu", ("dnnl", "native-cpu"), sizes=LARGE)
    exe = ky.compile(network(np.tile(W, (16, 16))), placement=replace(one, sizes={}, by_size=(one, other)))
    (alternative,) = exe.alternatives
    shared = exe.constants.keys() & alternative.constants.keys()
    assert shared
    assert all(exe.constants[digest] is alternative.constants[digest] for digest in shared)
    assert len(exe.to_bytes()) - len(exe.alone().to_bytes()) < 256 * W.nbytes


def test_one_placement_for_all_sizes_has_no_alternatives() -> None:
    one = PlacementDecision("dnnl first", ("dnnl",))
    alike = tuple(replace(one, sizes=each) for each in (SMALL, LARGE))
    exe = ky.compile(network(), placement=replace(one, by_size=alike))
    assert exe.alternatives == ()
    assert exe.report.decision is not None
    assert exe.report.decision.by_size == alike


def test_runs_of_the_placement_at_hand_take_its_fast_path() -> None:
    exe = ky.compile(network(), placement=by_size())
    runner = VirtualMachine(exe).function("main").runner
    x = np.ones((64, 16), np.float32)
    assert runner.try_fast_path([x]) is None
    runner.run([x])
    assert runner.try_fast_path([x]) is not None
    assert runner.try_fast_path([x[:4]]) is None
    runner.run([x[:4]])
    assert runner.try_fast_path([x[:4]]) is not None
    assert runner.try_fast_path([x]) is None


def test_warming_instruments_profiles_and_empty_inputs_meet_the_right_placement() -> None:
    exe = ky.compile(network(), placement=by_size())
    exe.warm({"x": (2, 16)}, {"x": (300, 16)})
    before = exe.cache_info()["plans"].misses
    check(exe, 2)
    check(exe, 300)
    assert exe.cache_info()["plans"].misses == before == 2
    machine, symbols = VirtualMachine(exe), list[str]()
    machine.set_instrument(lambda step, name, before_run, *_: symbols.append(name) if before_run else None)
    for rows in (2, 300):
        check(machine["main"], rows)
    own, other = ({step.symbol for step in each.programs["main"].steps} for each in (exe, exe.at_sizes({"n": 300})))
    assert own < set(symbols) > other
    assert {step.module for step in exe.profile({"x": np.ones((2, 16), np.float32)}).steps} == {"native-cpu"}
    assert "dnnl" in {step.module for step in exe.profile([np.ones((300, 16), np.float32)]).steps}
    assert exe(np.ones((0, 16), np.float32)).shape == (0, 16)
    exe.max_plans = 1
    for rows in (2, 300, 2):
        check(exe, rows)


@pytest.mark.parametrize(
    "change",
    [{"sizes": [{"n": -1}]}, {"sizes": [1]}, {"sizes": "n=4"}, {"alternatives": [{}]}, {"alternatives": 3}],
)
def test_a_damaged_manifest_is_refused(change: Mapping[str, object]) -> None:
    from kernelyard.runtime.artifact import kyar

    exe = ky.compile(network(), placement=by_size())
    manifest, members = kyar._content(exe)
    with pytest.raises(ArtifactCorruptedError):
        kyar.load(kyar.pack_container({**manifest, **change}, members))
