"""Counters of an engine inside a step: parts of a profile's step, and slices of a trace."""

from __future__ import annotations

import json
from functools import partial

import numpy as np

from kernelyard.dims import symbol
from kernelyard.runtime.api import BoundCall, Executable, JSONGraph, JSONNode, JSONRuntime, Part, TensorSpec
from kernelyard.runtime.program.program import Program, Register, Step

SPEC = TensorSpec((symbol("n"),), "float32", "x")
NODES = (JSONNode("input", (SPEC,), index=0), JSONNode("kernel", (SPEC,), "relu", (("x", (0, 0)),)))


class Engine(JSONRuntime):
    kind = "engine"

    def __init__(self):
        super().__init__([JSONGraph("f", (SPEC,), NODES, ((1, 0),))], {})
        self.told = []

    def build(self, graph, args, values, context):
        self.told.append(context.is_profiled)
        x, y = (arg.as_array() for arg in args)
        step = partial(np.maximum, x, 0, out=y)
        return BoundCall([step], counters=self.counted if context.is_profiled else None)

    def counted(self):
        return [(Part("Convolution", "jit_avx512", nbytes=8), 2e-6), (Part("Softmax", "ref"), 1e-6)]


def executable(engine):
    registers = (Register(SPEC.shape, "float32", "input", 0), Register(SPEC.shape, "float32", "buffer"))
    step = Step(0, "f", (0,), (1,), "node 'a'")
    output = TensorSpec(SPEC.shape, "float32", "y")
    return Executable({"main": Program("main", ("n",), (SPEC,), (output,), registers, (step,), (1,))}, [engine], {})


def test_what_an_engine_counts_is_shown(tmp_path):
    engine = Engine()
    exe = executable(engine)
    x = np.float32([-1, 2])
    assert exe(x).numpy().tolist() == [0, 2]
    assert engine.told == [False]
    profile = exe.profile([x], calls=3)
    (step,) = profile.steps
    found = [(part.label, part.implementation, part.seconds) for part in step.inside]
    assert found == [("Convolution", "jit_avx512", 2e-6), ("Softmax", "ref", 1e-6)]
    assert "jit_avx512" in profile.table
    profile.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    parts = [event for event in events if event.get("cat") == "engine part"]
    assert [event["name"] for event in parts[:2]] == ["Convolution", "Softmax"]
    assert len(parts) == 6
    assert exe(x).numpy().tolist() == [0, 2]
    assert True in engine.told
    assert engine.told.count(False) >= 1
