"""The verifier: every rule has a module that breaks it, and the message shows the place."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401
from kernelyard import dims
from kernelyard.errors import VerifyError
from kernelyard.ir import (
    Binding,
    Call,
    Constant,
    ExternFunc,
    Function,
    FunctionBuilder,
    GlobalVar,
    IRModule,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    get_op,
    verify,
)
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.primfunc import PrimFunc

N = dims.symbol("n")
F = TensorType((N, 4), "float32")


def refused(function: Function, message: str, **others) -> VerifyError:
    with pytest.raises(VerifyError, match=message) as info:
        verify(IRModule({"main": function, **others}))
    return info.value


def relu(x) -> Call:
    return Call(get_op("nn.relu"), [x])


def test_a_good_module_is_returned():
    b = FunctionBuilder()
    module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (N, 4))))})
    assert verify(module) is module


def test_the_message_shows_the_lines_around():
    x, y, z, unknown = (Var(name, F) for name in "xyzu")
    bindings = [Binding(y, relu(x)), Binding(z, relu(unknown)), Binding(Var("w", F, "node 'Relu_7' (Relu)"), relu(z))]
    error = refused(Function([x], bindings, z), "%u is read before it is bound")
    lines = (error.where or "").splitlines()
    assert lines[0] == "@main, line 3"
    assert lines[2].startswith("     2 |   %y:")
    assert lines[3].startswith(">    3 |   %z:")
    assert len(lines) == 6


def test_the_message_names_the_models_node():
    x, y = Var("x", F), Var("y", F, "node 'Relu_7' (Relu)")
    assert "node 'Relu_7'" in str(refused(Function([x], [Binding(y, relu(Var("u", F)))], y), "before it is bound"))


def test_variables_are_bound_once():
    x, y = Var("x", F), Var("y", F)
    refused(Function([x], [Binding(y, relu(x)), Binding(y, relu(x))], y), "%y is bound twice")
    refused(Function([x, x], [], x), "%x is bound twice")


def test_results_are_defined():
    refused(Function([], [], Var("y", F)), "before it is bound")


def test_operands_are_atoms():
    x, y = Var("x", F), Var("y", F)
    error = refused(Function([x], [Binding(y, relu(relu(x)))], y), "not a variable or a constant")
    assert error.hint


def test_results_are_flat():
    x = Var("x", F)
    refused(Function([x], [], relu(x)), "flat tuple")
    refused(Function([x], [], Tuple([Tuple([x])])), "flat tuple")


def test_declared_types_are_those_of_the_values():
    x, y = Var("x", F), Var("y", TensorType((N, 5), "float32"))
    error = refused(Function([x], [Binding(y, relu(x))], y), "another type than its value")
    assert error.expected == repr(y.type)


def test_types_are_inferred_again():
    x, y = Var("x", F), Var("y", F)
    call = relu(x)
    call.type = y.type = TensorType((N, 5), "float32")
    refused(Function([x], [Binding(y, call)], y), "differs from the inferred type")


def test_attributes_are_checked_again():
    x, y = Var("x", F), Var("y", F)
    call = Call(get_op("clip"), [x], {"min": 0.0})
    call.attrs = {"min": "zero"}
    refused(Function([x], [Binding(y, call)], y), "wrong type")


def test_type_rules_are_asked_again():
    x = Var("x", F)
    call = Call(get_op("add"), [x, x])
    call.args = (x, Constant(np.zeros((3, 4), np.int64)))
    y = Var("y", F)
    refused(Function([x], [Binding(y, call)], y), "same dtype")


def test_tuple_fields_exist():
    x, y = Var("x", F), Var("y", F)
    t = Var("t", TupleType((F,)))
    item = TupleGetItem(t, 0)
    item.index = 3
    refused(Function([x], [Binding(t, Tuple([x])), Binding(y, item)], y), "out of the tuple's range")


def test_tuple_types_are_those_of_the_fields():
    x = Var("x", F)
    value = Tuple([x])
    value.type = TupleType((F, F))
    refused(Function([x], [], value), "differs from the inferred type")


def test_symbols_occur_in_a_parameter():
    x = Var("x", TensorType((4,), "float32"))
    y = Var("y", TensorType((N, 4), "float32"))
    call = Call(get_op("broadcast_to"), [x], {"shape": (N, 4)})
    error = refused(Function([x], [Binding(y, call)], y), "occurs in no parameter")
    assert error.found == "n"
    shape = Call(get_op("shape_tensor"), [], {"dims": (N,)})
    z = Var("z", shape.type)
    refused(Function([], [Binding(z, shape)], z), "occurs in no parameter")
    verify(IRModule({"part": Function([x], [Binding(y, call)], y, {"Composite": "acme.broadcast"})}))


# --- calls of functions -----------------------------------------------------------------------------------------------
def caller(callee, *args, type_=F) -> Function:
    x, y = Var("x", F), Var("y", type_)
    return Function([x], [Binding(y, Call(callee, [x, *args], type_=type_))], y)


def helper(count: int = 1) -> Function:
    params = [Var(f"p{i}", F) for i in range(count)]
    return Function(params, [], params[0], {"Composite": "acme.same"})


def test_callees_exist():
    assert "@main" in str(refused(caller(GlobalVar("lost")), "no function @lost").expected)


def test_arguments_are_what_the_callee_takes():
    verify(IRModule({"main": caller(GlobalVar("f")), "f": helper()}))
    refused(caller(GlobalVar("f")), "arguments of the wrong types", f=helper(2))
    other = TensorType((N, 5), "float32")
    refused(caller(GlobalVar("f"), type_=other), "must return the type of the call", f=helper())


def loop_function(*types: TensorType) -> PrimFunc:
    buffers = tuple(Buffer(f"b{i}", type_.shape, type_.dtype) for i, type_ in enumerate(types))
    return PrimFunc(buffers, ())


def call_tir(*types: TensorType, callee=None) -> Function:
    x, y = Var("x", F), Var("y", types[-1])
    call = Call(get_op("call_tir"), [callee or GlobalVar("k"), x], type_=types[-1])
    return Function([x], [Binding(y, call)], y)


def test_loop_functions_are_called_by_call_tir():
    verify(IRModule({"main": call_tir(F), "k": loop_function(F, F)}))
    refused(caller(GlobalVar("k")), "wrong kind of call", k=loop_function(F, F))
    refused(call_tir(F), "wrong kind of call", k=helper())
    refused(call_tir(F, callee=Var("v", F)), "must be a GlobalVar")


def test_loop_functions_take_what_they_are_given():
    m = TensorType((dims.symbol("m"), 4), "float32")
    verify(IRModule({"main": call_tir(F), "k": loop_function(m, m)}))
    refused(call_tir(F), "has another signature than its call", k=loop_function(F, F, F))
    refused(call_tir(F), "has another signature than its call", k=loop_function(TensorType((N, 5), "float32"), F))
    refused(call_tir(F), "has another signature than its call", k=loop_function(F, TensorType((N, 4), "int32")))


def test_external_functions_are_called_by_symbol():
    x, y = Var("x", F), Var("y", F)
    good = Call(get_op("call_dps_packed"), [ExternFunc("dnnl_0"), x], type_=F)
    verify(IRModule({"main": Function([x], [Binding(y, good)], y)}))
    bad = Call(get_op("call_dps_packed"), [x, x], type_=F)
    refused(Function([x], [Binding(y, bad)], y), "must be a ExternFunc")
