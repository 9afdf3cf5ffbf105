"""Random programs, partitioned by random patterns for random backends, mean the same and stay well-formed."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted_backend import InterpretedBackend

from kernelyard.ir import get_op
from kernelyard.ir.printer import to_text
from kernelyard.ir.verify import verify
from kernelyard.patterns import FusionPattern, Pattern, is_const, is_op, wildcard
from kernelyard.placement.build_report import build_report
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.runtime.report import Report
from kernelyard.testing import strategies
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import RandomProgram
from kernelyard.transform.partition.run_codegen import RunCodegen

OPS = [*strategies.UNARY, *strategies.BINARY, *strategies.REDUCTIONS, "permute_dims", "reshape", "concat", "matmul"]
OPS += ["nn.softmax"]


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    """Random trees of operators, with shared leaves, alternatives and optional ends."""
    shared = [wildcard(), is_const(), wildcard()]

    def tree(depth: int) -> Pattern:
        if depth == 0 or draw(st.integers(0, 3)) == 0:
            return draw(st.sampled_from([*shared, wildcard()]))
        names = draw(st.lists(st.sampled_from(OPS), min_size=1, max_size=6, unique=True))
        most = max(get_op(name).arity[1] or 2 for name in names)
        args = [tree(depth - 1) for _ in range(draw(st.integers(0, min(most, 2))))]
        return is_op(*names)(*args, varargs=True)

    names = draw(st.lists(st.sampled_from(OPS), min_size=1, max_size=8, unique=True))
    pattern = is_op(*names)(tree(2), varargs=True)
    if draw(st.booleans()):
        last = draw(st.lists(st.sampled_from(OPS), min_size=1, max_size=6, unique=True))
        pattern = pattern.repeated(lambda p: is_op(*last)(p, varargs=True), draw(st.integers(1, 3)))
    if draw(st.booleans()):
        pattern = pattern | is_op(*draw(st.lists(st.sampled_from(OPS), min_size=1, max_size=4)))(varargs=True)
    return pattern.capture("root")


@st.composite
def backends(draw: st.DrawFn) -> list[InterpretedBackend]:
    found = []
    for name in draw(st.lists(st.sampled_from(["acme", "beta", "gamma"]), min_size=1, max_size=3, unique=True)):
        offered = [FusionPattern(f"{name}.p{i}", p) for i, p in enumerate(draw(st.lists(patterns(), max_size=4)))]
        ops = draw(st.lists(st.sampled_from(OPS), max_size=6, unique=True))
        declines = {op: "random" for op in ops if draw(st.integers(0, 3)) == 0}
        fails = draw(st.lists(st.sampled_from(OPS), max_size=1))
        found.append(InterpretedBackend(name, ops, offered, draw(st.booleans()), declines, fails))
    return found


@settings(max_examples=150, deadline=None)
@given(strategies.modules(max_ops=12), backends())
def test_partition_and_codegen_keep_the_meaning(program: RandomProgram, offered: list[InterpretedBackend]) -> None:
    recorder = Recorder()
    placed = partition(program.module, offered, PlacementSettings(recorder=recorder))
    verify(placed)
    assert_same_meaning(program.module, placed, program.inputs)
    compiled = RunCodegen({b.name: b.codegen for b in offered}, recorder=recorder)(placed)
    verify(compiled)
    assert_same_meaning(program.module, compiled, program.inputs)
    report = build_report(placed, recorder)
    counted = sum(row.count for row in report.placed)
    assert counted == sum(1 for b in program.module.graph_functions()["main"].bindings if hasattr(b.value, "op"))
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert str(report)


@settings(max_examples=60, deadline=None)
@given(strategies.modules(max_ops=10, symbolic=True), backends())
def test_symbolic_shapes_too_and_the_same_every_time(program: RandomProgram, offered: list[InterpretedBackend]) -> None:
    placed = partition(program.module, offered)
    verify(placed)
    assert_same_meaning(program.module, placed, program.inputs)
    assert to_text(partition(program.module, offered)) == to_text(placed)
