"""SeparateResults: calls whose results share no work become one call for each."""

from __future__ import annotations

import numpy as np

from kernelyard import dims
from kernelyard.ir import Expr, FunctionBuilder, IRModule, verify
from kernelyard.ops.interpreter import run
from kernelyard.tir import PrimFunc, parse_primfunc
from kernelyard.tir.verify import verify as verify_primfunc
from kernelyard.transform.fusion.separate_results import SeparateResults, parts_of
from kernelyard.transform.lowering.legalize_ops import LegalizeOps
from kernelyard.transform.pipelines import get_pipeline


def split_in(b: FunctionBuilder) -> tuple[Expr, Expr]:
    parts = b.op("split", b.input("x", (dims.symbol("n"), 6)), axis=1, sections=(2, 4))
    return b.get(parts, 0), b.get(parts, 1)


def functions(module: IRModule) -> list[PrimFunc]:
    return [f for f in module.functions.values() if isinstance(f, PrimFunc)]


def test_each_part_of_a_split_is_a_call():
    b = FunctionBuilder()
    before = LegalizeOps()(IRModule({"main": b.function(*split_in(b))}))
    module = verify(SeparateResults()(before))
    assert [f.num_outputs for f in functions(before)] == [2]
    assert [f.num_outputs for f in functions(module)] == [1, 1]
    assert len(module.graph_functions()["main"].bindings) == 2
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    for found, wanted in zip(run(module, [x]), (x[:, :2], x[:, 2:]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_parts_are_computed_where_they_are_read():
    b = FunctionBuilder()
    first, second = split_in(b)
    module = get_pipeline("legalize")(
        IRModule({"main": b.function(b.op("concat", b.op("negative", second), first, axis=1))})
    )
    (function,) = functions(module)
    assert [buffer.shape for buffer in function.inputs] == [(dims.symbol("n"), 6)]
    assert function.locals == ()


def test_part_that_nobody_reads_goes():
    b = FunctionBuilder()
    module = SeparateResults()(LegalizeOps()(IRModule({"main": b.function(split_in(b)[1])})))
    assert len(functions(module)) == 1


def test_results_that_share_work_stay_together():
    b = FunctionBuilder()
    both = b.op("topk", b.input("x", (4, 8)), k=2, axis=1)
    before = LegalizeOps()(IRModule({"main": b.function(b.get(both, 0), b.get(both, 1))}))
    assert [f.num_outputs for f in functions(before)] == [2]
    assert SeparateResults()(before) is before


def test_result_that_nobody_reads_goes():
    b = FunctionBuilder()
    values = b.get(b.op("topk", b.input("x", (4, 8)), k=2, axis=1), 0)
    module = verify(SeparateResults()(LegalizeOps()(IRModule({"main": b.function(b.op("exp", values))}))))
    (function,) = [f for f in functions(module) if len(f.blocks) == 2]
    verify_primfunc(function)
    assert [buffer.dtype for buffer in (*function.outputs, *function.locals)] == ["float32", "int64"]
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    np.testing.assert_allclose(run(module, [x])[0], np.exp(-np.sort(-x, 1)[:, :2]), rtol=1e-6)


def test_two_of_three_results_that_share_work():
    function = parse_primfunc(THREE)
    assert parts_of(function) is None
    (part,) = parts_of(function, frozenset({0, 2})) or []
    verify_primfunc(part.function)
    assert (part.inputs, part.outputs, len(part.function.blocks)) == ((0,), (0, 2), 3)
    assert [buffer.name for buffer in part.function.locals] == ["t"]


TWO = """input a: Tensor[(4,), float32]
input b: Tensor[(4,), float32]
output x: Tensor[(4,), float32]
output y: Tensor[(4,), float32]
local t: Tensor[(4,), float32]
block first(i: 4) {{
  t[i] = exp(a[i])
}}
block second(i: 4) {{
  x[i] = t[i]
}}
block third(i: 4) {{
  y[i] = neg({source}[i])
}}
"""


THREE = """input a: Tensor[(4,), float32]
input b: Tensor[(4,), float32]
output x: Tensor[(4,), float32]
output y: Tensor[(4,), float32]
output z: Tensor[(4,), float32]
local t: Tensor[(4,), float32]
block first(i: 4) {
  t[i] = exp(a[i])
}
block second(i: 4) {
  x[i] = t[i]
}
block third(i: 4) {
  y[i] = b[i]
}
block fourth(i: 4) {
  z[i] = neg(t[i])
}
"""


def test_each_part_has_its_own_inputs_and_locals():
    parts = parts_of(parse_primfunc(TWO.format(source="b")))
    assert parts is not None
    assert [part.inputs for part in parts] == [(0,), (1,)]
    assert [[buffer.name for buffer in part.function.locals] for part in parts] == [["t"], []]
    for part in parts:
        verify_primfunc(part.function)


def test_a_local_that_both_read_keeps_them_together():
    assert parts_of(parse_primfunc(TWO.format(source="t"))) is None


def test_a_result_that_the_other_reads_keeps_them_together():
    assert parts_of(parse_primfunc(TWO.format(source="x"))) is None


def test_parts_read_only_what_they_need():
    b = FunctionBuilder()
    module = LegalizeOps()(IRModule({"main": b.function(*split_in(b))}))
    (function,) = functions(module)
    parts = parts_of(function)
    assert parts is not None
    assert [part.inputs for part in parts] == [(0,), (0,)]
    assert [part.function.outputs[0].shape[1] for part in parts] == [2, 4]
