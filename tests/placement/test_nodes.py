"""Every op by itself: who runs it, what it reads, and why the others do not run it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from interpreted_backend import InterpretedBackend

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.errors import OptionError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.patterns import FusionPattern, is_const, is_op, wildcard
from kernelyard.placement.build_report import build_report
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.settings import PlacementSettings
from kernelyard.runtime.report import Report

W = np.eye(4, dtype=np.float32)


def report_of(module: IRModule, *backends: InterpretedBackend, exclude: tuple[str, ...] = ()) -> Report:
    recorder = Recorder()
    placed = partition(module, backends, PlacementSettings(recorder=recorder, exclude_patterns=exclude))
    report = build_report(placed, recorder)
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    return report


def network(count: int = 1) -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (2, 4))
    for i in range(count):
        y = b.op("nn.relu", x, origin=f"node 'R_{i}' (Relu)")
        x = b.op("floor", b.op("matmul", y, W))
    return IRModule({"main": b.function(x)})


def reasons(report: Report, op: str) -> dict[str, tuple[str, str]]:
    node = next(node for node in report.nodes if node.op == op)
    return {reason.backend: (reason.code, reason.message) for reason in node.reasons}


def test_nodes_say_who_runs_them_and_what_they_read() -> None:
    report = report_of(network(), InterpretedBackend("acme", ["matmul"]))
    assert [(n.op, n.backend, n.pattern, n.inputs, n.reads, n.gives) for n in report.nodes] == [
        ("nn.relu", "rest", "", (), ("x",), ()),
        ("matmul", "acme", "acme.matmul", (0,), (), ()),
        ("floor", "rest", "", (1,), (), ("output_0",)),
    ]
    assert report.nodes[1].type == "Tensor[(2, 4), float32]"
    assert report.nodes[1].flops == 2 * 2 * 4 * 4
    assert not any(node.reasons for node in report.nodes)  # nobody has a pattern for the others


def test_shared_regions_are_as_many_nodes_as_calls() -> None:
    report = report_of(network(3), InterpretedBackend("acme", ["nn.relu"]))
    relus = [i for i, node in enumerate(report.nodes) if node.op == "nn.relu"]
    assert [report.nodes[i].inputs for i in relus] == [(), (relus[1] - 1,), (relus[2] - 1,)]
    assert len({report.nodes[i].function for i in relus}) == 1
    assert len({report.nodes[i].group for i in relus}) == 3
    assert [region.node for region in report.regions] == [f"node 'R_{i}' (Relu)" for i in range(3)]


def test_a_near_miss_names_the_first_part_that_failed() -> None:
    x = wildcard()
    patterns = [
        FusionPattern("acme.relu_of_const", is_op("nn.relu")(is_const())),
        FusionPattern("acme.dense", is_op("floor")(is_op("matmul")(is_op("tanh")(x), is_const()))),
        FusionPattern("acme.floor_of_exp", is_op("floor")(is_op("exp")(x))),
    ]
    report = report_of(network(), InterpretedBackend("acme", patterns=patterns))
    assert reasons(report, "nn.relu") == {"acme": ("no-match", "operand 0 of nn.relu: expected a constant, found %x")}
    code, message = reasons(report, "floor")["acme"]
    assert (code, message) == ("no-match", "operand 0 of matmul: expected tanh, found nn.relu")
    (reason,) = report.nodes[-1].reasons
    assert reason.pattern == "acme.dense"  # it came nearer than the other


def test_the_text_has_a_line_for_each_reason_why_no_pattern_matched() -> None:
    after_tanh = FusionPattern("acme.after_tanh", is_op("matmul")(is_op("tanh")(wildcard()), is_const()))
    report = report_of(network(5), InterpretedBackend("acme", patterns=[after_tanh]))
    lines = str(report).splitlines()
    (line,) = [line for line in lines if "expected tanh, found nn.relu" in line]
    nodes = [node.name for node in report.nodes if node.op == "matmul"]
    assert [len(nodes), *line.split()[:3]] == [5, "acme", "matmul", "5"]
    assert f"{', '.join(nodes[:3])}, ...  acme.after_tanh  operand 0" in line
    assert nodes[3] not in line


def test_the_text_names_no_pattern_where_all_is_taken() -> None:
    report = report_of(network(2), InterpretedBackend("acme", ["matmul"]))
    assert "not matched by" not in str(report)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (is_op("concat")(wildcard()), "operands of concat: expected 1, found 2"),
        (is_op("concat")(varargs=True).has_attr(axis=0), "attribute axis of concat: expected 0, found 1"),
        (is_op("concat")(varargs=True).has_dtype("int8"), "expected int8, found Tensor[(2, 8), float32]"),
        (is_op("concat")(varargs=True).has_shape(None), "expected the shape (any), found Tensor[(2, 8), float32]"),
        (is_op("concat")(varargs=True).where(lambda v: False), "expected that its condition holds, found concat"),
        (is_op("concat")(is_op("exp", "tanh")(wildcard()), wildcard()),
         "operand 0 of concat: expected exp or tanh, found %x"),
        (is_op("concat")(is_const(3.0) | is_op("exp")(wildcard()), wildcard()),
         "operand 0 of concat: expected a constant of 3 everywhere or exp, found %x"),
    ],
)  # fmt: skip
def test_each_kind_of_part_is_explained(pattern, message: str) -> None:
    b = FunctionBuilder()
    x = b.input("x", (2, 4))
    module = IRModule({"main": b.function(b.op("concat", x, x, axis=1))})
    report = report_of(module, InterpretedBackend("acme", patterns=[FusionPattern("acme.p", pattern)]))
    assert reasons(report, "concat") == {"acme": ("no-match", message)}


def test_what_must_be_one_value_and_is_not() -> None:
    same = wildcard()
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("add", b.input("x", (2,)), b.input("y", (2,))))})
    report = report_of(
        module, InterpretedBackend("acme", patterns=[FusionPattern("acme.twice", is_op("add")(same, same))])
    )
    assert reasons(report, "add")["acme"][1].startswith("each operand matches by itself")


def test_refusals_of_others_and_who_came_first() -> None:
    first = InterpretedBackend("first", ["matmul", "nn.relu"], declines={"matmul": "dtype"})
    second = InterpretedBackend("second", ["matmul", "nn.relu"])
    report = report_of(network(), first, second)
    assert reasons(report, "matmul") == {"first": ("dtype", "matmul is not for first")}
    assert reasons(report, "nn.relu") == {"second": ("taken", "first comes first")}


def test_the_text_names_backends_that_run_nothing() -> None:
    first, second = InterpretedBackend("first", ["nn.relu"]), InterpretedBackend("second", ["nn.relu"])
    line = 'second runs nothing: first comes first for nn.relu×3; backends=["second"] or tune= would let it'
    assert line in str(report_of(network(3), first, second)).splitlines()
    of_both = InterpretedBackend("second", ["nn.relu", "matmul"])
    assert "runs nothing" not in str(report_of(network(3), first, of_both))


def test_a_group_that_leaks() -> None:
    b = FunctionBuilder()
    y = b.op("exp", b.input("x", (2, 4)))
    module = IRModule({"main": b.function(b.op("floor", y), b.op("ceil", y))})
    pair = [FusionPattern(f"acme.{op}", is_op(op)(is_op("exp")(wildcard()))) for op in ("floor", "ceil")]
    report = report_of(module, InterpretedBackend("acme", patterns=pair))
    assert reasons(report, "floor")["acme"][0] == "leaking-intermediate"
    assert [node.gives for node in report.nodes] == [(), ("output_0",), ("output_1",)]


def test_excluded_patterns() -> None:
    backend = InterpretedBackend("acme", ["matmul", "nn.relu"])
    report = report_of(network(), backend, exclude=("acme.matmul",))
    assert reasons(report, "matmul") == {"acme": ("excluded", "acme.matmul is excluded by the caller")}
    assert [region.pattern for region in report.regions] == ["acme.nn.relu"]
    with pytest.raises(OptionError, match=r"did you mean 'acme\.matmul'"):
        report_of(network(), backend, exclude=("acme.matmull",))
    with pytest.raises(OptionError, match="no backend takes part"):
        report_of(network(), exclude=("acme.matmul",))
