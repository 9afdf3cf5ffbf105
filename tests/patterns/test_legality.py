"""What the core refuses itself, with its reasons."""

from __future__ import annotations

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.dims import symbol
from kernelyard.ir import FunctionBuilder, IRModule, TensorType, get_op, verify
from kernelyard.patterns import Decline, is_op, match, wildcard
from kernelyard.patterns.legality import check_legality, leaking_intermediates
from kernelyard.transform import FuseOpsByPattern

RELU_OF_TANH = is_op("nn.relu")(is_op("tanh")(wildcard()))


def test_a_chain_is_legal() -> None:
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("tanh", b.input("x", (2,))))
    assert check_legality(match(RELU_OF_TANH, y, b.function(y))) is None


def test_an_intermediate_used_outside_leaks() -> None:
    b = FunctionBuilder()
    t = b.op("tanh", b.input("x", (2,)))
    y, z = b.op("nn.relu", t), b.op("exp", t)
    found = match(RELU_OF_TANH, y, b.function(y, z))
    answer = check_legality(found)
    assert isinstance(answer, Decline)
    assert (answer.code, answer.at) == ("leaking-intermediate", t)
    assert repr(z) in answer.message
    assert leaking_intermediates(found) == (t,)


def test_an_intermediate_that_is_returned_leaks() -> None:
    b = FunctionBuilder()
    t = b.op("tanh", b.input("x", (2,)))
    y = b.op("nn.relu", t)
    answer = check_legality(match(RELU_OF_TANH, y, b.function(y, t)))
    assert answer is not None
    assert answer.code == "leaking-intermediate"
    assert "result" in answer.message


def test_a_use_that_feeds_the_group_again_is_a_cycle() -> None:
    b = FunctionBuilder()
    t = b.op("tanh", b.input("x", (2,)))
    g = b.op("exp", b.op("sin", t))
    y = b.op("add", b.op("nn.relu", t), g)
    pattern = is_op("add")(RELU_OF_TANH, wildcard())
    answer = check_legality(match(pattern, y, b.function(y)))
    assert answer is not None
    assert (answer.code, answer.at) == ("cycle", t)


def test_ops_with_effects_stay_where_they_are() -> None:
    b = FunctionBuilder()
    y = b.op("nn.relu", b.op("random.uniform", shape=(2,)))
    answer = check_legality(match(is_op("nn.relu")(is_op("random.uniform")()), y, b.function(y)))
    assert answer is not None
    assert answer.code == "impure"


def test_whole_tuples_do_not_enter_a_group() -> None:
    b = FunctionBuilder()
    parts = b.op("split", b.input("x", (4,)), axis=0, sections=(2, 2))
    item = b.get(parts, 0)
    y = b.op("nn.relu", item)
    f = b.function(y)
    assert check_legality(match(is_op("nn.relu")(wildcard()), y, f)) is None
    answer = check_legality(match(is_op("nn.relu")(wildcard()[0]), y, f))
    assert answer is not None
    assert answer.code == "tuple-input"


def test_branches_and_loops_stay_with_the_program() -> None:
    b = FunctionBuilder()
    x, flag = b.input("x", (2,)), b.input("flag", (), "bool")
    y = b.op("tanh", b.if_(flag, "then", "otherwise", [x], TensorType((2,), "float32")))
    answer = check_legality(match(is_op("tanh")(is_op("if")(varargs=True)), y, b.function(y)))
    assert answer is not None
    assert (answer.code, answer.message) == ("control-flow", "if calls functions of the module")


def test_an_op_that_decides_its_own_size_stays_with_the_program() -> None:
    """A composite's caller says what its result is like: there would be nobody to make the size known."""
    b = FunctionBuilder()
    found = b.call(get_op("nonzero"), [b.input("x", (8,))], TensorType((1, symbol("k") - 1), "int64"))
    y = b.op("add", found, 1)
    module = verify(IRModule({"main": b.function(y)}))
    pattern = is_op("add")(is_op("nonzero")(wildcard()), wildcard())
    answer = check_legality(match(pattern, y, module["main"]))
    assert answer is not None
    assert answer.code == "own-size"
    assert FuseOpsByPattern([("acme.found", pattern)])(module) is module
    after = verify(FuseOpsByPattern([("acme.add", is_op("add")(wildcard(), wildcard()))])(module))
    assert [binding.value.op_name for binding in after["main"].bindings] == ["nonzero", "fused_add"]
