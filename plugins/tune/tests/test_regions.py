"""Placements that mix backends, from times of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import kernelyard as ky
from kernelyard.runtime.placement_decision import ASSIGNED
from kernelyard.runtime.profiling.profile import Profile, StepTime
from kernelyard_tune.regions import Measured, measure_steps, region_candidates

W = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)


def network() -> bytes:
    """relu(cumsum(relu(x @ w)) @ w): two products, and between them what dnnl has no pattern for."""
    nodes = [
        helper.make_node(op, inputs, [output], name=output)
        for op, inputs, output in [
            ("MatMul", ["x", "w"], "a"),
            ("Relu", ["a"], "b"),
            ("CumSum", ["b", "axis"], "c"),
            ("MatMul", ["c", "w"], "d"),
            ("Relu", ["d"], "y"),
        ]
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 16]) for name in "xy")
    weights = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.array(1), "axis")]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights)).SerializeToString()


def measured(backends: list[str], seconds: dict[str, float]) -> Measured:
    """Return a whole placement whose steps take as long as is said of the ops that they begin with."""
    exe = ky.compile(network(), backends=backends)
    found = measure_steps(exe, {"x": np.ones((8, 16), np.float32)}, 2)
    assert sorted(number for step in found.profile.steps for number in step.nodes) == list(range(5))
    steps: list[StepTime] = []
    for step in found.profile.steps:
        first = found.report.nodes[step.nodes[0]]
        place = "last" if step.nodes[0] >= 3 else "first"
        steps.append(replace(step, seconds=seconds[f"{place} {first.op}"], inside=()))
    return replace(found, profile=Profile(tuple(steps), 1.0, 2))


GENERATED = {"first matmul": 1.0, "first nn.relu": 1.0, "first cumsum": 1.0, "last matmul": 9.0, "last nn.relu": 1.0}


def test_each_region_goes_where_it_is_quicker() -> None:
    generated = measured([], GENERATED)
    library = measured(["dnnl"], {"first matmul": 5.0, "first cumsum": 1.0, "last matmul": 2.0})
    found = region_candidates([generated, library], "native-cpu", ["dnnl"])
    assert found
    for decision in found:
        assert decision.policy == ASSIGNED
        assert decision.backends == ("dnnl",)
    last = [f"{node.name} {node.op}" for node in library.report.nodes[3:]]
    assert sorted(found[0].assigned) == sorted(last)


def test_a_mixture_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The race is won by what the search finds: it is compiled as it is assigned, and is right."""
    x = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
    monkeypatch.setattr("kernelyard_tune.race.MOST_TURNS", 1)
    monkeypatch.setattr("kernelyard_tune.tuner._list_placed", lambda _: [object()])
    monkeypatch.setattr("kernelyard_tune.race.Race.winner", lambda race: race.racers[-1])
    exe = ky.compile(network(), tune=ky.Tuning(120, threads=1, remember=False))
    decision = exe.report.decision
    assert decision is not None
    assert decision.name.startswith("by region")
    for node in exe.report.nodes:
        assert (node.backend == "dnnl") == (f"{node.name} {node.op}" in decision.assigned)
    expected = np.maximum(np.cumsum(np.maximum(x @ W, 0), 1) @ W, 0)
    assert np.allclose(exe(x).numpy(), expected, rtol=1e-3, atol=1e-2)
    assert ky.compile(network(), placement=decision).to_bytes() == exe.to_bytes()
