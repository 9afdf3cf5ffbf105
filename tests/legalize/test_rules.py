"""Every rule against the op's NumPy reference, on the op's own samples, static and symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  (declares the vocabulary)
from kernelyard import dims, dtypes, legalize
from kernelyard.errors import TypeInferenceError
from kernelyard.ir import Op, Sample, TensorType, all_ops
from kernelyard.ir.types import tensors_of
from kernelyard.tir import parse_primfunc, print_primfunc
from kernelyard.tir.interpreter import evaluate

TOLERANCES = {"float64": (1e-10, 1e-10), "float32": (2e-5, 2e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{number}-{sample.label}")
    for op in all_ops()
    if legalize.has_rule(op.name)
    for number, sample in enumerate(op.samples())
]


def check(
    op: Op,
    sample: Sample,
    operands: list[TensorType],
    symbols: dict[str, int],
    symbolic_attrs: Mapping[str, Any] | None = None,
) -> None:
    attrs = op.check_attributes(sample.attributes)
    stated = attrs if symbolic_attrs is None else op.check_attributes(symbolic_attrs)
    result = op.infer_type(operands, stated)
    function = legalize.legalize_call(op.name, operands, stated, result)
    assert parse_primfunc(print_primfunc(function)) == function
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


def test_every_operator_has_a_rule_or_a_reason():
    without = {op.name for op in all_ops() if not legalize.has_rule(op.name)}
    assert without == set(legalize.WITHOUT_RULE)
    assert all(legalize.WITHOUT_RULE.values())
    assert {op.name for op in all_ops() if not op.samples()} <= without  # what has a rule is tested here


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_rule_agrees_with_reference(op: Op, sample: Sample):
    operands = [TensorType(np.shape(a), dtypes.from_numpy(np.asarray(a).dtype)) for a in sample.inputs]
    check(op, sample, operands, {})


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_rule_agrees_with_reference_for_symbolic_shapes(op: Op, sample: Sample):
    """Every size above 1 is a symbol, where the op's type rule knows what to do with one."""
    symbols = {f"n{size}": size for array in sample.inputs for size in np.shape(array)}
    operands = symbolic_operands(sample)
    try:
        op.infer_type(operands, op.check_attributes(sample.attributes))
    except TypeInferenceError:
        pytest.skip("the type rule needs known sizes here")
    check(op, sample, operands, symbols)


@pytest.mark.parametrize("name", sorted({case.values[0].name for case in CASES}))
def test_rule_returns_the_result_type_where_one_size_alone_is_symbolic(name: str):
    """Operands' sizes that must be equal are taken to be so: the result has those that the type rule has chosen."""
    op, sample = next(case.values for case in CASES if case.values[0].name == name)
    attrs = op.check_attributes(sample.attributes)
    types = [TensorType(np.shape(a), dtypes.from_numpy(np.asarray(a).dtype)) for a in sample.inputs]
    for operand, type_ in enumerate(types):
        for axis in range(type_.rank):
            shape = (*type_.shape[:axis], dims.symbol("n"), *type_.shape[axis + 1 :])
            operands = [*types[:operand], TensorType(shape, type_.dtype), *types[operand + 1 :]]
            try:
                result = op.infer_type(operands, attrs)
            except TypeInferenceError:  # such a size must be known
                continue
            function = legalize.legalize_call(op.name, operands, attrs, result)
            assert tensors_of(function.result_type) == tensors_of(result)


SYMBOLIC_CASES = [case for case in CASES if any(a.kind in ("dim", "dims") for a in case.values[0].attributes.values())]


@pytest.mark.parametrize(("op", "sample"), SYMBOLIC_CASES)
def test_rule_agrees_with_reference_for_symbolic_attributes(op: Op, sample: Sample):
    """Sizes in attributes are symbols, too: the same symbol for the same size as in the operands' shapes."""
    symbols = {f"n{size}": size for array in sample.inputs for size in np.shape(array)}
    attrs = dict(sample.attributes)
    for name, attribute in op.attributes.items():
        if name in attrs and attribute.kind in ("dim", "dims"):
            value = attrs[name]
            sizes = (value,) if attribute.kind == "dim" else tuple(value)
            symbols |= {f"n{size}": size for size in sizes}
            attrs[name] = symbolic(value) if attribute.kind == "dim" else tuple(map(symbolic, value))
    operands = symbolic_operands(sample)
    try:
        op.infer_type(operands, op.check_attributes(attrs))
    except TypeInferenceError:
        pytest.skip("the type rule needs known sizes here")
    check(op, sample, operands, symbols, attrs)


def symbolic_operands(sample: Sample) -> list[TensorType]:
    return [
        TensorType(tuple(map(symbolic, np.shape(array))), dtypes.from_numpy(np.asarray(array).dtype))
        for array in sample.inputs
    ]


def symbolic(size: int) -> dims.Dim:
    return dims.symbol(f"n{size}") if size > 1 else size
