"""What must hold for every operator: samples, a reference, and a type rule that agrees with it."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dims, dtypes
from kernelyard.errors import TypeInferenceError
from kernelyard.ir import Op, TensorType, all_ops
from kernelyard.ir.types import substitute, tensors_of
from kernelyard.ops.reference_runtime import ReferenceModule, load
from kernelyard.testing.assertions import assert_allclose
from kernelyard.testing.op_cases import DimOf, OpCase, one_symbol_per_axis, one_symbol_per_size, op_cases
from kernelyard.testing.reference import evaluate

DECLARED = [op for op in all_ops() if not op.opaque_type]
CASES = op_cases()
# The length of their index vectors decides about the rank of the result.
NEED_STATIC_INDICES = ("gather_nd", "scatter_nd")


def by_op(op: Op) -> list[OpCase]:
    return [case for case in CASES if case.op is op]


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.name)
class TestEveryOp:
    def test_it_is_documented_and_sampled(self, op: Op) -> None:
        labels = [case.sample.label for case in by_op(op)]
        assert op.summary
        assert op.reference is not None
        assert len(labels) >= 2
        assert all(labels)
        assert len(set(labels)) == len(labels)

    def test_its_type_rule_says_what_the_reference_gives(self, op: Op) -> None:
        for case in by_op(op):
            found = [TensorType(a.shape, dtypes.from_numpy(a.dtype)) for a in case.expected()]
            attributes = op.check_attributes(case.sample.attributes)
            assert list(tensors_of(op.infer_type(case.types, attributes))) == found, case.id

    @pytest.mark.parametrize("dim_of", [one_symbol_per_size, one_symbol_per_axis])
    def test_its_type_rule_is_exact_for_symbolic_dims(self, op: Op, dim_of: DimOf) -> None:
        for case in by_op(op):
            if op.name in NEED_STATIC_INDICES:
                with pytest.raises(TypeInferenceError, match="length of the index vectors must be known"):
                    case.module(dim_of=lambda operand, axis, size: dims.symbol(f"n{operand}_{axis}"))
                continue
            module = case.module(dim_of=dim_of)
            sizes = {
                name: size
                for number, array in enumerate(case.sample.inputs)
                for axis, size in enumerate(array.shape)
                for name in dims.symbols_of(dim_of(number, axis, size))
            }
            inferred = substitute(module["main"].result_type, sizes)
            found = [TensorType(a.shape, dtypes.from_numpy(a.dtype)) for a in case.expected()]
            assert list(tensors_of(inferred)) == found, case.id
            assert_same(evaluate(module, case.inputs()), case.expected())

    def test_its_samples_are_the_same_every_time(self, op: Op) -> None:
        for one, other in zip(op.samples(), op.samples(), strict=True):
            assert one.label == other.label
            assert_same(one.inputs, other.inputs)

    def test_its_reference_leaves_its_inputs_alone(self, op: Op) -> None:
        for case in by_op(op):
            before = [array.copy() for array in case.sample.inputs]
            case.expected()
            assert_same(case.sample.inputs, before)

    def test_it_runs_in_the_interpreter_and_from_a_saved_reference_module(self, op: Op) -> None:
        for case in by_op(op):
            expected = case.expected()
            module = case.module()
            assert_same(evaluate(module, case.inputs()), expected)
            call = module["main"].bindings[0].value
            saved = ReferenceModule.from_calls({"f": call}).save_to_bytes()
            outputs = [np.empty_like(array) for array in expected]
            load(saved, {}).get_function("f")(*case.sample.inputs, *outputs)
            assert_same(outputs, expected)

    def test_its_work_is_a_count(self, op: Op) -> None:
        for case in by_op(op):
            attributes = op.check_attributes(case.sample.attributes)
            result = op.infer_type(case.types, attributes)
            if op.flops is not None:
                flops = op.flops(case.types, result, attributes)
                assert isinstance(flops, int)
                assert flops >= 0

    def test_commutative_operands_may_be_swapped(self, op: Op) -> None:
        for case in by_op(op):
            if op.commutative:
                assert op.reference is not None
                assert_allclose(op.reference(*reversed(case.sample.inputs)), case.expected()[0])


def assert_same(actual: object, expected: object) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


def test_the_vocabulary_is_complete() -> None:
    names = {op.name for op in all_ops()}
    assert {"call_tir", "call_dps_packed", "matmul", "nn.conv2d", "nn.layer_norm", "image.resize", "where"} <= names
    assert len(names) >= 125


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_once(dtype: str) -> None:
    for case in CASES:
        if case.sample.label != dtype or case.op.name.startswith(("arg", "is")):
            continue
        wide = [a.astype(np.float32) if a.dtype == dtypes.to_numpy(dtype) else a for a in case.sample.inputs]
        assert case.op.reference is not None
        computed = case.op.reference(*wide, **case.sample.attributes)
        result = computed[0] if isinstance(computed, tuple) else computed
        if result.dtype == np.float32:
            expected = result.astype(dtypes.to_numpy(dtype))
            assert_allclose(case.expected()[0], expected)
