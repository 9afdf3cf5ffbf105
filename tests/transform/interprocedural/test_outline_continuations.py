"""What follows a size that a value decides is a function of its own."""

from __future__ import annotations

import numpy as np
import pytest
from control_flow_modules import branching, growing

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.ir import Call, FunctionBuilder, IRModule, TensorType, TupleType, get_op, verify
from kernelyard.ir.scopes import Scopes
from kernelyard.ops.interpreter import run
from kernelyard.transform.interprocedural.outline_continuations import OutlineContinuations

X = np.array([[0, 2, 0, 3], [1, 0, 0, 5]], np.float32)


def twice_found() -> IRModule:
    """main(x) = the elements of x that are not zero, then those of their halves above 1; and a count from sizes alone."""
    k, m = symbol("k"), symbol("m")
    b = FunctionBuilder()
    flat = b.op("reshape", b.input("x", (2, 4)), shape=(8,))
    parts = b.bind(Call(get_op("split"), [flat], {"axis": 0, "sections": (4, 4)}))
    where = b.bind(Call(get_op("nonzero"), [flat], type_=TensorType((1, k - 1), "int64")))
    half = b.op("multiply", b.op("take", flat, b.op("reshape", where, shape=(k - 1,)), axis=0), 0.5)
    large = b.op("greater", half, 1.0)
    again = b.bind(Call(get_op("nonzero"), [large], type_=TensorType((1, m - 1), "int64")))
    kept = b.op("take", half, b.op("reshape", again, shape=(m - 1,)), axis=0)
    return IRModule({"main": b.function(kept, b.op("shape_tensor", dims=(k - 1, m - 1)), b.get(parts, 0))})


def test_meaning_stays() -> None:
    module = verify(twice_found())
    outlined = verify(OutlineContinuations()(module))
    for found, expected in zip(run(outlined, [X]), run(module, [X]), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert OutlineContinuations()(outlined) is outlined
    assert not Scopes(outlined).free("main")
    exe = ky.compile(module, backends=[])
    for found, expected in zip(exe(X), run(module, [X]), strict=True):
        np.testing.assert_array_equal(np.asarray(found), expected)


def test_each_new_size_ends_a_function() -> None:
    outlined = OutlineContinuations()(twice_found())
    assert list(outlined) == ["main", "main_rest", "main_rest_rest"]
    assert list(outlined.public_functions()) == ["main"]
    assert isinstance(outlined.public_functions()["main"].result_type, TupleType)


def test_what_is_made_of_constants_stays_with_those_that_wait() -> None:
    k = symbol("k")
    b = FunctionBuilder()
    x = b.input("x", (4,))
    where = b.bind(Call(get_op("nonzero"), [x], type_=TensorType((1, k - 1), "int64")))
    weight = b.op("permute_dims", np.ones((3, 4), np.float32), axes=(1, 0))
    shared = b.op("negative", np.ones(4, np.float32))
    scaled = b.op("multiply", x, shared)
    rows = b.op("take", weight, b.op("reshape", where, shape=(k - 1,)), axis=0)
    module = IRModule({"main": b.function(rows, b.op("add", b.op("shape_tensor", dims=(k - 1,)), 1), scaled)})
    outlined = verify(OutlineContinuations()(module))
    assert not any("permute" in str(binding.value) for binding in outlined["main"].bindings)
    found = ky.compile(module, backends=[])(X[0])
    for result, expected in zip(found, run(module, [X[0]]), strict=True):
        np.testing.assert_array_equal(np.asarray(result), expected)


@pytest.mark.parametrize("module", [branching(symbol("n")), growing()])
def test_a_function_stays_where_operands_tell_the_order(module: IRModule) -> None:
    assert OutlineContinuations()(module) is module


def test_a_size_reaches_kernels_two_splits_later() -> None:
    """Nothing but an attribute reads the first size, which two functions later a kernel's code does."""
    k, m = symbol("k"), symbol("m")
    b = FunctionBuilder()
    x, counts = b.input("x", (2, 4)), [b.parameter(TensorType((1,), "int64"), name) for name in ("first", "second")]
    for size, count in zip((k, m), counts, strict=True):
        b.bind(Call(get_op("tensor_to_shape"), [count], type_=TensorType((size,), "bool")))
    sizes = [b.op("add", b.op("shape_tensor", dims=(size,)), 1) for size in (k, m)]
    module = verify(IRModule({"main": b.function(b.op("multiply", x, 2.0), *sizes)}))
    outlined = verify(OutlineContinuations()(module))
    assert list(outlined) == ["main", "main_rest", "main_rest_rest"]
    assert not Scopes(outlined).free("main_rest_rest")
    doubled, first, second = ky.compile(module, backends=[])(X, np.array([3]), np.array([7]))
    assert (first.numpy().tolist(), second.numpy().tolist()) == ([4], [8])
    np.testing.assert_array_equal(doubled.numpy(), 2 * X)


def test_what_does_not_wait_for_the_size_stays_beside_what_it_is_fused_with() -> None:
    k = symbol("k")
    b = FunctionBuilder()
    x = b.input("x", (8,))
    product = b.op("multiply", x, x)
    b.bind(Call(get_op("nonzero"), [x], type_=TensorType((1, k - 1), "int64")))
    module = IRModule({"main": b.function(b.op("nn.relu", product), b.op("shape_tensor", dims=(k - 1,)))})
    outlined = verify(OutlineContinuations()(module))
    assert [each.value.op_name for each in outlined["main"].bindings[:3]] == ["multiply", "nn.relu", "nonzero"]
    assert [each.value.op_name for each in outlined["main_rest"].bindings] == ["shape_tensor"]
