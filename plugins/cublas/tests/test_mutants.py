"""A wrong descriptor gives a wrong number: each way to get one wrong that the library would not refuse is noticed.

The problem is square, so that no size gives a mistake away.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernelyard.runtime.abi.memory import address_of, aligned_copy
from kernelyard_cublas import descriptors as made
from kernelyard_cublas._enums import Epilogue, LayoutAttribute, MatmulAttribute
from kernelyard_cublas.descriptors import Descriptors
from kernelyard_cublas.emulation import EmulatedLt
from kernelyard_cublas.lt_api import Addresses, LtError, MatmulCall
from kernelyard_cublas.problem import Attributes, problem_of

SHAPE = (3, 4, 4)
RNG = np.random.default_rng(0)


def operands():
    arrays = {role: RNG.standard_normal(SHAPE).astype(np.float32) for role in ("lhs", "rhs", "residual", "out")}
    arrays["bias"] = RNG.standard_normal(4).astype(np.float32)
    return {role: aligned_copy(array) for role, array in arrays.items()}


ATTRIBUTES = Attributes(transpose_rhs=True, activation="relu", alpha=0.5)


def wanted(arrays):
    product = np.matmul(arrays["lhs"], np.swapaxes(arrays["rhs"], 1, 2)) * np.float32(0.5)
    return np.maximum(product + arrays["residual"] + arrays["bias"], 0)


def run(arrays, problem, change=None, call_change=None):
    api, at = EmulatedLt(), {role: address_of(array) for role, array in arrays.items()}
    descriptors = Descriptors(api, problem, at)
    if change is not None:
        change(api, descriptors)
    (heuristic,) = api.heuristics(descriptors.matmul, descriptors.layouts, descriptors.preference, 1)
    addresses = Addresses(at["rhs"], at["lhs"], at["residual"], at["out"])
    call = MatmulCall(
        descriptors.matmul,
        descriptors.layouts,
        addresses,
        problem.alpha,
        problem.beta,
        problem.scale_type,
        heuristic,
        0,
    )
    call = call if call_change is None else call_change(call)
    api.prepare(call)(0)
    return arrays["out"]


def problem_for(arrays, attributes=ATTRIBUTES):
    return problem_of(attributes, {r: a.shape for r, a in arrays.items()}, dict.fromkeys(arrays, "float32"))


def sets(which, attribute, value):
    return lambda api, descriptors: api.set(which(descriptors), attribute, value)


CHANGES = {
    "an operand not transposed": sets(lambda d: d.matmul, MatmulAttribute.TRANSA, 0),
    "the other operand transposed": sets(lambda d: d.matmul, MatmulAttribute.TRANSB, 1),
    "no activation": sets(lambda d: d.matmul, MatmulAttribute.EPILOGUE, Epilogue.BIAS),
    "another activation": sets(lambda d: d.matmul, MatmulAttribute.EPILOGUE, Epilogue.GELU_BIAS),
    "no bias": sets(lambda d: d.matmul, MatmulAttribute.EPILOGUE, Epilogue.RELU),
    "one matrix of a batch for all": sets(lambda d: d.layouts.a, LayoutAttribute.STRIDED_BATCH_OFFSET, 0),
    "a stride of half a matrix": sets(lambda d: d.layouts.b, LayoutAttribute.STRIDED_BATCH_OFFSET, 8),
    "one residual for all": sets(lambda d: d.layouts.c, LayoutAttribute.STRIDED_BATCH_OFFSET, 0),
    "one result for all": sets(lambda d: d.layouts.d, LayoutAttribute.STRIDED_BATCH_OFFSET, 0),
}
CALLS = {
    "operands exchanged": lambda call: replace(
        call, addresses=call.addresses._replace(a=call.addresses.b, b=call.addresses.a)
    ),
    "no residual": lambda call: replace(call, beta=0.0),
    "another factor": lambda call: replace(call, alpha=1.0),
}


def test_unchanged_it_is_right():
    arrays = operands()
    np.testing.assert_allclose(run(arrays, problem_for(arrays)), wanted(arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", [*CHANGES, *CALLS])
def test_a_wrong_one_is_noticed(what):
    arrays = operands()
    expected = wanted(arrays)
    found = run(arrays, problem_for(arrays), CHANGES.get(what), CALLS.get(what))
    assert not np.allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_a_missing_bias_is_refused(monkeypatch):
    monkeypatch.setattr(made, "POINTERS", {})
    arrays = operands()
    with pytest.raises(LtError, match="INVALID_VALUE"):
        run(arrays, problem_for(arrays))
