"""ReorderPermuteDimsAfterConcat: the scenarios of TVM's test of that name, and its limits."""

from __future__ import annotations

import pytest

from kernelyard.errors import TypeInferenceError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.transform import DeadCodeElimination, Sequential
from kernelyard_tvm_compat.combine_parallel_matmul import CombineParallelMatmul
from kernelyard_tvm_compat.reorder_permute_dims_after_concat import ReorderPermuteDimsAfterConcat

PASS = Sequential([ReorderPermuteDimsAfterConcat(), DeadCodeElimination()])


@pytest.mark.parametrize("count", [2, 3, 20])
@pytest.mark.parametrize(("axes", "axis"), [((1, 0), 1), ((1, 0), 0)])
def test_simple(check, count, axes, axis) -> None:
    b = FunctionBuilder()
    copies = [b.op("permute_dims", b.input(f"x{i}", (4, 4)), axes=axes) for i in range(count)]
    after = check(PASS, b.function(b.op("concat", *copies, axis=axis)))
    assert check.ops(after) == ["concat", "permute_dims"]
    assert after.bindings[0].value.attrs["axis"] == 1 - axis


def test_axes_of_higher_rank(check) -> None:
    b = FunctionBuilder()
    copies = [b.op("permute_dims", b.input(f"x{i}", (2, 3 + i, 4)), axes=(2, 0, 1)) for i in range(2)]
    after = check(PASS, b.function(b.op("concat", *copies, axis=2)))
    assert check.ops(after) == ["concat", "permute_dims"]
    assert after.bindings[0].value.attrs["axis"] == 1


def test_do_not_combine_incompatible_axes() -> None:
    b = FunctionBuilder()
    x, y = b.input("x", (4, 4, 4)), b.input("y", (4, 4, 4))
    copies = [b.op("permute_dims", x, axes=(2, 0, 1)), b.op("permute_dims", y, axes=(1, 2, 0))]
    module = IRModule({"main": b.function(b.op("concat", *copies, axis=0))})
    assert ReorderPermuteDimsAfterConcat()(module) is module


@pytest.mark.parametrize("first", [0, 2])
def test_check_for_rewrite_around_an_incompatible_change(check, first) -> None:
    """One concat that fits is changed, whether one that does not fit comes before or after it."""
    b = FunctionBuilder()
    x = [b.input(f"x{i}", (4, 4)) for i in range(4)]
    transposed = [b.op("permute_dims", each, axes=(1, 0)) for each in x]
    mixed = transposed[:1] + x[1:2], transposed[2:]
    order = mixed if first == 0 else mixed[::-1]
    results = [b.op("concat", *parts, axis=0) for parts in order]
    after = check(PASS, b.function(*results))
    assert sorted(check.ops(after)) == ["concat", "concat", "permute_dims", "permute_dims"]


def test_negative_concat_axis() -> None:
    """Axes count from the front, so that no pass meets a negative one: what is written otherwise is refused."""
    b = FunctionBuilder()
    copies = [b.op("permute_dims", b.input(f"x{i}", (2, 3)), axes=(1, 0)) for i in range(2)]
    with pytest.raises(TypeInferenceError, match="write 1"):
        b.op("concat", *copies, axis=-1)


def test_a_copy_that_is_needed_anyway_is_read_from() -> None:
    b = FunctionBuilder()
    copies = [b.op("permute_dims", b.input(f"x{i}", (2, 3)), axes=(1, 0)) for i in range(2)]
    module = IRModule({"main": b.function(b.op("concat", *copies, axis=1), copies[0])})
    assert ReorderPermuteDimsAfterConcat()(module) is module


def test_combined_products_have_one_transposed_operand(check) -> None:
    """What CombineParallelMatmul makes of transposed weights, as libraries take it."""
    b = FunctionBuilder()
    x = b.input("x", (2, 8))
    transposed = [b.op("permute_dims", b.input(f"w{i}", (4, 8)), axes=(1, 0)) for i in range(3)]
    function = b.function(*(b.op("matmul", x, weight) for weight in transposed))
    after = check(Sequential([CombineParallelMatmul(), PASS]), function)
    assert check.ops(after) == ["concat", "permute_dims", "matmul", "split"]


SCENARIOS = {
    "ReorderPermuteDimsAfterConcat: simple": test_simple,
    "ReorderPermuteDimsAfterConcat: do not combine incompatible axes": test_do_not_combine_incompatible_axes,
    "ReorderPermuteDimsAfterConcat: check for rewrite before and after an incompatible change": (
        test_check_for_rewrite_around_an_incompatible_change
    ),
    "ReorderPermuteDimsAfterConcat: negative concat axis": test_negative_concat_axis,
}
