"""InvokeKnownClosures: closures that are known become calls, and calls are inlined."""

from __future__ import annotations

import numpy as np
from closure_modules import MAP, PRIVATE, ROW, N, X, as_an_argument, from_a_branch, known

from kernelyard.dims import symbol
from kernelyard.ir import Call, FunctionBuilder, FunctionType, IRModule, TensorType, verify
from kernelyard.ops.interpreter import run
from kernelyard.transform import InlinePrivateFunctions, InvokeKnownClosures


def ops(module: IRModule) -> list[str]:
    calls = [b.value for f in module.graph_functions().values() for b in f.bindings if isinstance(b.value, Call)]
    return [call.op_name for call in calls]


def test_a_closure_made_in_the_same_function():
    module = verify(InvokeKnownClosures()(known()))
    assert "invoke_closure" not in ops(module)
    assert "add_x" in ops(module)


def test_a_closure_out_of_a_tuple():
    b, inner = FunctionBuilder(), FunctionBuilder()
    x = b.input("x", (N,))
    add_x = b.closure("add_x", inner, inner.op("add", inner.input("y", (N,)), x))
    pair = b.tuple(x, add_x)
    before = IRModule({"main": b.function(b.invoke_closure(b.get(pair, 1), [x])), **b.lifted})
    after = verify(InvokeKnownClosures()(before))
    assert "invoke_closure" not in ops(after)
    np.testing.assert_array_equal(run(after, [X])[0], X + X)


def test_a_closure_that_is_an_argument_is_known_once_the_call_is_inlined():
    module = as_an_argument()
    assert InvokeKnownClosures()(module) is module
    inlined = InvokeKnownClosures()(InlinePrivateFunctions()(module))
    assert "invoke_closure" not in ops(inlined)
    np.testing.assert_array_equal(run(inlined, [X])[0], 3 * X)


def test_a_closure_from_a_branch_stays_a_value():
    module = from_a_branch()
    assert InvokeKnownClosures()(module) is module


def test_other_names_for_its_sizes_stay():
    """A plain call states the sizes by the function's own names."""
    m = symbol("m")
    inner = FunctionBuilder()
    apply = inner.function(inner.op("exp", inner.input("y", (m,))), attrs=PRIVATE)
    b = FunctionBuilder()
    any_size = FunctionType((TensorType((m,), "float32"),), TensorType((m,), "float32"))
    closure = b.make_closure("apply", [], any_size)
    x = b.input("x", (N,))
    module = verify(IRModule({"main": b.function(b.invoke_closure(closure, [x], ROW)), "apply": apply}))
    assert verify(InvokeKnownClosures()(module)) is module
    np.testing.assert_allclose(run(module, [X])[0], np.exp(X))
    assert any_size != MAP
