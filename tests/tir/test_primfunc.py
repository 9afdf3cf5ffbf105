"""PrimFuncs: the notation, the interpreter's strictness, the verifier's faults, the text form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dims
from kernelyard.errors import ExecutionError, ParseError, ShapeError, VerifyError
from kernelyard.ir import IRModule, TensorType, parse_module, to_text
from kernelyard.testing.strategies import RandomProgram, modules
from kernelyard.tir import PrimFunc, interpreter, parse_primfunc, print_primfunc
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import Axis, Const, select
from kernelyard.tir.interpreter import evaluate
from kernelyard.tir.primfunc import ComputeBlock, IterVar
from kernelyard.tir.verify import verify
from kernelyard.transform import LegalizeOps
from kernelyard.transform.pipelines import get_pipeline

N = dims.symbol("n")
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def normalized_rows() -> PrimFunc:
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((N, 4), "float32"))
    total = b.reduce("sum", (N,), (4,), lambda at, point: x[at[0], point[0]], name="total")
    return b.finish((b.compute((N, 4), lambda i, j: x[i, j] / total[i]),))


def test_symbols_and_types():
    function = normalized_rows()
    assert function.symbols == ("n",)
    assert function.result_type == TensorType((N, 4), "float32")
    assert [buffer.name for buffer in function.params] == ["x", "out0"]


def test_reduction_and_compute():
    (found,) = evaluate(normalized_rows(), [X])
    np.testing.assert_allclose(found, X / X.sum(1, keepdims=True))


def test_reduction_starts_from_init():
    b = PrimFuncBuilder()
    x, bias = b.input("x", TensorType((3, 4), "float32")), b.input("bias", TensorType((3,), "float32"))
    total = b.reduce("sum", (3,), (4,), lambda at, p: x[at[0], p[0]], init=lambda at: bias[at[0]])
    (found,) = evaluate(b.finish((total,)), [X, np.ones(3, np.float32)])
    np.testing.assert_allclose(found, X.sum(1) + 1)


@pytest.mark.parametrize("reducer", ["sum", "argmax"])
def test_reductions_of_many_points_are_evaluated_in_parts(reducer: str, monkeypatch: pytest.MonkeyPatch):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, 4), "float32"))
    if reducer == "sum":
        result = b.reduce("sum", (3,), (4,), lambda at, p: x[at[0], p[0]], init=lambda at: x[at[0], 1])
    else:
        result = b.reduce("argmax", (3,), (4,), lambda at, p: x[at[0], p[0]], arg=lambda at, p: p[0])
    whole = evaluate(b.finish((result,)), [X])[0]
    monkeypatch.setattr(interpreter, "MOST_POINTS", 8)
    np.testing.assert_array_equal(evaluate(b.finish((result,)), [X])[0], whole)


def test_scan_reads_what_it_wrote():
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, 4), "float32"))
    running = b.scan((3, 4), 1, lambda out, at: x[at] + select(at[1] < 1, 0.0, out[at[0], at[1] - 1]), "float32")
    (found,) = evaluate(b.finish((running,)), [X])
    np.testing.assert_allclose(found, X.cumsum(1))


def test_last_write_of_an_ordered_store_stays():
    b = PrimFuncBuilder()
    target = b.compute((1,), lambda i: i)
    b.store(target, (5,), lambda k: (0,), lambda k: k, ordered=(0,))
    (found,) = evaluate(b.finish((target,)), [])
    assert found.tolist() == [4]


def test_results_may_be_inputs_and_may_repeat():
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((3, 4), "float32"))
    y = b.compute((3, 4), lambda i, j: x[i, j] + 1)
    function = b.finish((x, y, y))
    verify(function)
    for found, expected in zip(evaluate(function, [X]), (X, X + 1, X + 1), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_untaken_branch_is_not_loaded():
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((4,), "float32"))
    shifted = b.compute((4,), lambda i: select(i < 1, 0.0, x[i - 1]))
    (found,) = evaluate(b.finish((shifted,)), [np.arange(4, dtype=np.float32)])
    assert found.tolist() == [0, 0, 1, 2]


def test_access_outside_a_buffer_is_an_error():
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((4,), "float32"))
    function = b.finish((b.compute((4,), lambda i: x[i + 1]),))
    with pytest.raises(ExecutionError, match="outside buffer 'x'"):
        evaluate(function, [np.zeros(4, np.float32)])


def test_inputs_are_checked():
    with pytest.raises(ShapeError, match="'x' does not fit"):
        evaluate(normalized_rows(), [np.zeros((3, 5), np.float32)])
    with pytest.raises(ShapeError, match="'x' does not fit"):
        evaluate(normalized_rows(), [np.zeros((3, 4), np.float64)])


# --- the verifier --------------------------------------------------------------------------------------------------
def changed(**parts) -> Callable[[PrimFunc], PrimFunc]:
    """The function with its last block changed."""
    return lambda f: f.with_blocks((*f.blocks[:-1], replace(f.blocks[-1], **parts)))


OTHER = Buffer("other", (4,), "float32")
FAULTS = {
    "is read before it is written": lambda f: f.with_blocks(f.blocks[1:]),
    "output 'out0' is never written": lambda f: f.with_blocks(f.blocks[:1]),
    "buffer 'other' is not declared": changed(body=OTHER[Axis("i0")]),
    "an axis is not declared": changed(indices=(Axis("i0"), Axis("z"))),
    "has the wrong number of indices": changed(indices=(Axis("i0"),)),
    "another dtype than its buffer": changed(body=Const(1, "int64")),
    "unknown reducer": changed(reducer="mean"),
    "init and arg need a reducer": changed(init=Const(0.0, "float32")),
    "an axis name is declared twice": changed(axes=(IterVar("i0", N), IterVar("i0", 4))),
    "an axis name is no identifier": changed(axes=(IterVar("i 0", N), IterVar("i1", 4))),
    "input 'x' is written": lambda f: changed(output=f.params[0])(f),
}


@pytest.mark.parametrize("message", FAULTS)
def test_verifier_names_the_fault(message: str):
    with pytest.raises(VerifyError, match=message.replace("[", r"\[")):
        verify(FAULTS[message](normalized_rows()))


def test_well_formed_function_passes():
    verify(normalized_rows())


def test_reduce_axis_outside_the_body():
    x = Buffer("x", (4,), "float32")
    out = Buffer("out", (4,), "float32")
    block = ComputeBlock("b", (IterVar("k", 4, "reduce"),), out, (Axis("k"),), x[Axis("k")], "sum")
    with pytest.raises(VerifyError, match="outside the body"):
        verify(PrimFunc((x, out), (block,)))


# --- text ------------------------------------------------------------------------------------------------------------
def test_text_is_read_back():
    function = normalized_rows().with_attrs(ops=("a", "b"))
    assert parse_primfunc(print_primfunc(function)) == function


def test_a_function_is_read_back_as_it_is_printed():
    function = normalized_rows()
    assert str(function).startswith("primfunc @main {\n")
    assert parse_primfunc(str(function)) == parse_primfunc(f"\n  {function}\n") == function
    (text,) = [f"primfunc{part}" for part in to_text(IRModule({"some rows": function})).split("primfunc")[1:]]
    assert parse_primfunc(text) == function


@pytest.mark.parametrize("after", ["}", "primfunc @other {\n}"])
def test_a_text_is_one_function(after: str):
    with pytest.raises(ParseError, match="goes on after the function"):
        parse_primfunc(f"{normalized_rows()}{after}")


@settings(deadline=None)
@given(modules(), st.booleans())
def test_every_function_of_a_lowered_program_is_read_back(program: RandomProgram, is_fused: bool):
    lower = get_pipeline("legalize") if is_fused else LegalizeOps()
    for function in lower(get_pipeline("simplify")(program.module)).functions.values():
        if isinstance(function, PrimFunc):
            assert parse_primfunc(str(function)) == parse_primfunc(print_primfunc(function)) == function
            assert str(parse_primfunc(str(function))) == str(function)


def test_module_with_a_primfunc_is_read_back():
    module = IRModule({"rows": normalized_rows()})
    text = to_text(module)
    assert parse_module(text)["rows"] == module["rows"]
    assert to_text(parse_module(text)) == text


def test_text_form(golden):
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((N, 4), "float32"))
    best = b.reduce("argmax", (N,), (4,), lambda at, p: x[at[0], p[0]], arg=lambda at, p: p[0], name="best")
    total = b.reduce("sum", (N,), (4,), lambda at, p: x[at[0], p[0]], init=lambda at: Const(0.5, "float32"))
    golden.check(print_primfunc(b.finish((best, b.compute((N,), lambda i: total[i] * -2.0)))) + "\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input x: Tuple[]", "a buffer is a tensor"),
        ("output y: Tensor[(4,), float32]\nblock b(i: 4) {\n y[i] = z[i]\n}", "no buffer has this name"),
        ("output y: Tensor[(4,), float32]\nblock b(i: 4) {\n y[i] = expo(1)\n}", "no scalar operator has this name"),
        ("output y: Tensor[(4,), float32]\nblock b(i: 4) {\n y[j] = 1\n}", "no axis has this name"),
        ("output y: Tensor[(4,), int8]\nblock b(i: 4) {\n y[i] = int8(1.5)\n}", "this is no int8"),
        ("output y: Tensor[(4,), int64]\nblock b(i: 4) {\n y[i] = add(i)\n}", "add takes 2 operands"),
        ("output y: Tensor[(4,), bool]\nblock b(i: 4) {\n y[i] = " + "not(" * 500, "nested too deeply"),
    ],
)
def test_faulty_text_is_refused_with_its_line(text: str, message: str):
    with pytest.raises(ParseError, match=message):
        parse_primfunc(text)
