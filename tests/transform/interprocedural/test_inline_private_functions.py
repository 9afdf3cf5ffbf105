"""Private functions in place of their calls, and entry functions without tuples."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import PassError
from kernelyard.ir import Call, FunctionBuilder, GlobalVar, IRModule, TensorType, TupleType, parse_module, to_text
from kernelyard.ir.verify import verify
from kernelyard.testing import evaluate
from kernelyard.transform import FlattenEntryTuples, InlinePrivateFunctions

VECTOR = TensorType((2,), "float32")


def negated(callee: str | None = None):
    b = FunctionBuilder()
    x = b.input("x", (2,))
    return b.function(b.op("negative", x) if callee is None else b.call_function(callee, [x], VECTOR), attrs=PRIVATE)


PRIVATE = {"private": True}


def main(*callees: str):
    b = FunctionBuilder()
    value = b.input("x", (2,))
    for callee in callees:
        value = b.op("exp", b.call_function(callee, [value], VECTOR))
    return b.function(value)


def test_calls_are_replaced_and_functions_go() -> None:
    module = IRModule({"main": main("outer", "inner"), "outer": negated("inner"), "inner": negated()})
    inlined = InlinePrivateFunctions()(module)
    assert list(inlined) == ["main"]
    assert [binding.value.op_name for binding in inlined["main"].bindings] == ["negative", "exp"] * 2
    x = np.array([1, -2], np.float32)
    np.testing.assert_array_equal(evaluate(verify(inlined), [x])[0], evaluate(module, [x])[0])


def test_functions_that_are_not_private_stay() -> None:
    module = IRModule({"main": main("other"), "other": main()})
    assert InlinePrivateFunctions()(module) is module


def test_branches_stay_functions() -> None:
    b = FunctionBuilder()
    condition, x = b.input("c", (), "bool"), b.input("x", (2,))
    y = b.call_function("inner", [b.if_(condition, "outer", "inner", [x], VECTOR)], VECTOR)
    module = IRModule({"main": b.function(y), "outer": negated("inner"), "inner": negated()})
    inlined = verify(InlinePrivateFunctions()(module))
    assert set(inlined) == {"main", "outer", "inner"}
    called = [b.value for f in inlined.graph_functions().values() for b in f.bindings]
    assert not [call for call in called if isinstance(call, Call) and isinstance(call.op, GlobalVar)]


@pytest.mark.parametrize("circle", [{"a": "a"}, {"a": "b", "b": "a"}])
def test_a_circle_is_refused(circle: dict[str, str]) -> None:
    module = IRModule({"main": main("a"), **{name: negated(callee) for name, callee in circle.items()}})
    with pytest.raises(PassError, match="are recursive"):
        InlinePrivateFunctions()(module)


PAIR = TupleType((VECTOR, TupleType((VECTOR, TensorType((), "float32")))))


def nested() -> IRModule:
    b = FunctionBuilder()
    first, pair = b.input("first", (2,)), b.parameter(PAIR, "pair")
    total = b.op("add", first, b.get(b.get(pair, 1), 0))
    names = {"input_names": ("in", "two"), "output_names": ("sum", "pair")}
    return IRModule({"main": b.function(total, pair, attrs=names)})


def test_tuples_become_their_fields() -> None:
    module = nested()
    flat = verify(FlattenEntryTuples()(module))
    assert flat["main"].attrs["input_names"] == ("in", "two_0", "two_1_0", "two_1_1")
    assert flat["main"].attrs["output_names"] == ("sum", "pair_0", "pair_1_0", "pair_1_1")
    assert [param.type for param in flat["main"].params] == [VECTOR, VECTOR, VECTOR, TensorType((), "float32")]
    assert to_text(parse_module(to_text(flat))) == to_text(flat)
    one, two, three = (np.full(2, n, np.float32) for n in (1, 2, 3))
    results = ky.compile(module, backends=[])(one, two, three, np.float32(4))
    assert [result.numpy().tolist() for result in results] == [[4, 4], [2, 2], [3, 3], 4]


def test_functions_without_tuples_stay_as_they_are() -> None:
    module = IRModule({"main": main()})
    assert FlattenEntryTuples()(module) is module
    private = IRModule({"main": nested()["main"].with_attrs(private=True)})
    assert FlattenEntryTuples()(private) is private


def test_a_tuple_alone_becomes_the_results() -> None:
    b = FunctionBuilder()
    pair = b.parameter(PAIR, "pair")
    flat = FlattenEntryTuples()(IRModule({"main": b.function(pair)}))["main"]
    assert [param.name for param in flat.params] == ["pair_0", "pair_1_0", "pair_1_1"]
    assert flat.result_type == TupleType((VECTOR, VECTOR, TensorType((), "float32")))
