"""Instruments: timing, dumps, verification after each pass, and diffs."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401
from kernelyard.errors import PassError, VerifyError
from kernelyard.ir import Binding, Function, FunctionBuilder, IRModule, TensorType, Var, parse_module
from kernelyard.transform.pass_infra.instruments import DumpIR, PrintChanged, TimingInstrument, VerifyEach
from kernelyard.transform.pass_infra.pass_base import PassContext, Sequential, module_pass
from kernelyard.transform.pipelines import get_pipeline


def small_module() -> IRModule:
    b = FunctionBuilder()
    x = b.input("x", (2, 20))
    y = b.op("add", x, 0.0)
    return IRModule({"main": b.function(b.op("add", y, np.arange(20, dtype=np.float32)))})


@module_pass("break_it")
def break_it(module, context):
    lost, y = (Var(name, TensorType((2,), "float32")) for name in ("lost", "y"))
    return IRModule({"main": Function([], [Binding(y, lost)], y)})


@module_pass("fail")
def fail(module, context):
    raise ZeroDivisionError


def test_timing_measures_every_pass_and_the_sequence():
    timing = TimingInstrument()
    with PassContext(instruments=[timing]):
        get_pipeline("clean")(small_module())
    assert [(t.name, t.depth) for t in timing.times[-2:]] == [("dead_code_elimination", 1), ("clean", 0)]
    assert timing.times[-1].seconds >= sum(t.seconds for t in timing.times[:-1])
    assert str(timing).splitlines()[-1].endswith(" ms  clean")


def test_timing_goes_on_after_a_failure():
    timing = TimingInstrument()
    with PassContext(instruments=[timing]):
        with pytest.raises(PassError):
            Sequential([fail])(small_module())
        get_pipeline("clean")(small_module())
    assert timing.times[-1].name == "clean"


def test_dumps_can_be_parsed_and_resumed(tmp_path):
    with PassContext(instruments=[DumpIR(tmp_path / "dumps", constants="inline")]):
        after = get_pipeline("clean")(small_module())
    names = sorted(path.name for path in (tmp_path / "dumps").iterdir())
    assert names == [
        "001-canonicalize.ir",
        "002-fold_constants.ir",
        "003-eliminate_common_subexpr.ir",
        "004-dead_code_elimination.ir",
    ]
    last = parse_module((tmp_path / "dumps" / names[-1]).read_text(encoding="utf-8"))
    assert str(last) == str(after)


def test_dumps_go_to_a_function():
    dumps = []
    with PassContext(instruments=[DumpIR(lambda name, text: dumps.append((name, text)))]):
        get_pipeline("clean")(small_module())
    assert dumps[0][0] == "canonicalize"
    assert "return %lv_1" in dumps[0][1]


def test_the_pass_that_breaks_the_module_is_named():
    with PassContext(instruments=[VerifyEach()]), pytest.raises(PassError, match="'break_it' left a malformed") as info:
        Sequential([*get_pipeline("clean").passes, break_it])(small_module())
    assert "> " in str(info.value.where)


def test_a_module_that_was_malformed_before_is_no_passs_fault():
    with PassContext(instruments=[VerifyEach()]), pytest.raises(VerifyError):
        get_pipeline("clean")(break_it.run(small_module(), PassContext()))


def test_changes_are_shown_and_nothing_else():
    written: list[str] = []
    with PassContext(instruments=[PrintChanged(written.append)]):
        get_pipeline("clean")(small_module())
    assert len(written) == 1
    assert "--- before canonicalize" in written[0]
    assert any(line.startswith("-  %lv:") and "float32(0.0)" in line for line in written[0].splitlines())
