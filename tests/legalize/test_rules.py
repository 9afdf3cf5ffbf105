"""Every rule against the op's NumPy reference, on the op's own samples, static and symbolic."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  (declares the vocabulary)
from kernelyard import dims, dtypes, legalize
from kernelyard.errors import TypeInferenceError
from kernelyard.ir import Op, Sample, TensorType, all_ops
from kernelyard.ir.types import tensors_of
from kernelyard.tir.interpreter import evaluate

TOLERANCES = {"float64": (1e-10, 1e-10), "float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{number}-{sample.label}")
    for op in all_ops()
    if legalize.has_rule(op.name)
    for number, sample in enumerate(op.samples())
]


def check(op: Op, sample: Sample, operands: list[TensorType], symbols: dict[str, int]) -> None:
    attrs = op.check_attributes(sample.attributes)
    result = op.infer_type(operands, attrs)
    function = legalize.legalize_call(op.name, operands, attrs, result)
    assert op.reference is not None
    reference = op.reference(*sample.inputs, **attrs)
    expected = reference if isinstance(reference, tuple) else (reference,)
    found = evaluate(function, [np.asarray(array) for array in sample.inputs], symbols)
    for wanted, actual, type_ in zip(expected, found, tensors_of(result), strict=True):
        assert actual.dtype == dtypes.to_numpy(type_.dtype)
        assert actual.shape == wanted.shape
        rtol, atol = TOLERANCES.get(type_.dtype, (0, 0))
        if rtol:
            actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_allclose(actual, wanted, rtol=rtol, atol=atol)


def test_every_operator_has_a_rule():
    missing = {op.name for op in all_ops() if not legalize.has_rule(op.name)}
    assert missing == {"call_tir", "call_dps_packed"}


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_rule_agrees_with_reference(op: Op, sample: Sample):
    operands = [TensorType(np.shape(a), dtypes.from_numpy(np.asarray(a).dtype)) for a in sample.inputs]
    check(op, sample, operands, {})


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_rule_agrees_with_reference_for_symbolic_shapes(op: Op, sample: Sample):
    """Every size above 1 is a symbol, where the op's type rule knows what to do with one."""
    sizes = sorted({size for array in sample.inputs for size in np.shape(array) if size > 1})
    symbols = {f"n{size}": size for size in sizes}
    operands = [
        TensorType(
            tuple(dims.symbol(f"n{size}") if size > 1 else size for size in np.shape(array)),
            dtypes.from_numpy(np.asarray(array).dtype),
        )
        for array in sample.inputs
    ]
    try:
        op.infer_type(operands, op.check_attributes(sample.attributes))
    except TypeInferenceError:
        pytest.skip("the type rule needs known sizes here")
    check(op, sample, operands, symbols)
