"""AdjustMatmulOrder: the scenarios of TVM's test_transform_adjust_matmul_order.py by name, and what it must not do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import Binding, Call, Expr, Function, FunctionBuilder, IRModule, Var, verify
from kernelyard.patterns import Dataflow
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.transform import DeadCodeElimination
from kernelyard_tvm_compat.adjust_matmul_order import AdjustMatmulOrder

R, N = dims.symbol("r"), dims.symbol("n")
ADJUST = AdjustMatmulOrder()
Shape = tuple[Dim, ...]


def left_first(b: FunctionBuilder, a: Expr, c: Expr, d: Expr) -> Var:
    return b.op("matmul", b.op("matmul", a, c), d)


def right_first(b: FunctionBuilder, a: Expr, c: Expr, d: Expr) -> Var:
    return b.op("matmul", a, b.op("matmul", c, d))


def product(build, *shapes: Shape) -> Function:
    b = FunctionBuilder()
    return b.function(build(b, *(b.input(f"x{i}", shape, "float64") for i, shape in enumerate(shapes))))


def brackets(function: Function) -> str:
    """The result as it is put together: "((x0 x1) x2)"; "'" after what is transposed."""
    dataflow = Dataflow.of(function)

    def text(expr: Expr) -> str:
        value = dataflow.value_of(expr)
        if not isinstance(value, Call):
            return expr.name if isinstance(expr, Var) else "C"
        if value.op_name == "permute_dims":
            return f"{text(value.args[0])}'"
        return f"({' '.join(map(text, value.args))})"

    return text(function.result)


LEFT, RIGHT = "((x0 x1) x2)", "(x0 (x1 x2))"
VECTOR_FIRST = ((16,), (16, 2), (2, 32))
VECTOR_LAST = ((32, 2), (2, 16), (16,))


@pytest.mark.parametrize("build", [left_first, right_first])
@pytest.mark.parametrize(
    ("shapes", "best"),
    [
        pytest.param(VECTOR_FIRST, LEFT, id="LHS"),
        pytest.param(VECTOR_LAST, RIGHT, id="RHS"),
        pytest.param(((16,), (16, R), (R, 32)), LEFT, id="LHSDynamic"),
        pytest.param(((32, R), (R, 16), (16,)), RIGHT, id="RHSDynamic"),
        pytest.param(((4, 1, 16), (16, 16), (16, 32)), LEFT, id="DynamicWithBatchConcrete1LHSFirst"),
        pytest.param(((64, 1, 16), (16, 64), (64, 32)), RIGHT, id="DynamicWithBatchConcrete1RHSFirst"),
        pytest.param(((2, 1, 8, 4), (3, 4, 2), (2, 16)), LEFT, id="BatchedBroadcastPreferLHSFirst"),
        pytest.param(((5, 8, 4), (5, 4, 2), (5, 2, 16)), LEFT, id="BatchedSharedPrefixPreferLHSFirst"),
    ],
)
def test_the_cheaper_order_is_taken(check, build, shapes, best) -> None:
    """Whichever order is there; and it stays then (IdempotentLHS, IdempotentRHS, and the dynamic ones)."""
    function = product(build, *shapes)
    after = check(ADJUST, function)
    assert brackets(after) == best
    module = IRModule({"main": after})
    assert ADJUST(module) is module


@pytest.mark.parametrize("build", [left_first, right_first])
@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param((("b", 1, 16), (16, "r"), ("r", 32)), id="DynamicWithBatchSymbolic1"),
        pytest.param((("n", "m"), ("m", "r"), ("r", "k")), id="NoOpForFullyDynamic"),
    ],
)
def test_what_is_not_cheaper_for_every_size_stays(build, shapes) -> None:
    sizes = [tuple(dims.symbol(d) if isinstance(d, str) else d for d in shape) for shape in shapes]
    module = IRModule({"main": product(build, *sizes)})
    assert ADJUST(module) is module


def test_sizes_may_be_told() -> None:
    shapes = ((N, 1, 16), (16, R), (R, 32))
    for sizes, best in (({"n": 4, "r": 16}, LEFT), ({"n": 64, "r": 64}, RIGHT)):
        after = AdjustMatmulOrder(sizes)(IRModule({"main": product(right_first, *shapes)}))
        assert brackets(after["main"]) == best  # pyright: ignore[reportArgumentType]


def test_preserve_compile_time_matmul() -> None:
    """The product of two constants is computed once and for all, however many operations it takes."""
    left, right = np.ones((16, 2), np.float32), np.ones((2, 32), np.float32)
    b = FunctionBuilder()
    x = b.input("x", (1, 16))
    kept = IRModule({"main": b.function(right_first(b, x, left, right))})
    assert ADJUST(kept) is kept
    b = FunctionBuilder()
    x = b.input("x", (1, 16))
    chain = IRModule({"main": b.function(left_first(b, x, left, right))})
    assert brackets(ADJUST(chain)["main"]) == "(x (C C))"  # pyright: ignore[reportArgumentType]
    b = FunctionBuilder()
    constant = IRModule({"main": b.function(left_first(b, np.ones((8, 16), np.float32), left, right))})
    assert ADJUST(constant) is constant


@pytest.mark.parametrize("rank", [2, 3])
def test_rhs_permute_dims(check, rank: int) -> None:
    """x @ (c @ a)', the product transposed: each factor is transposed instead."""
    axes = (*range(rank - 2), rank - 1, rank - 2)
    batch = (3,) * (rank - 2)
    b = FunctionBuilder()
    x, c, a = b.input("x", (*batch, 1, 16)), b.input("c", (*batch, 32, 2)), b.input("a", (*batch, 2, 16))
    function = b.function(b.op("matmul", x, b.op("permute_dims", b.op("matmul", c, a), axes=axes)))
    assert brackets(check(ADJUST, function)) == "((x a') c')"


def test_lhs_permute_dims_with_symbols(check) -> None:
    b = FunctionBuilder()
    c, a, x = b.input("c", (R, 16)), b.input("a", (32, R)), b.input("x", (16, 1))
    transposed = b.op("permute_dims", b.op("matmul", a, c), axes=(1, 0))
    function = b.function(b.op("matmul", transposed, b.input("y", (32, 1))), b.op("tanh", x))
    assert brackets_of_first(check(ADJUST, function)) == "(c' (a' y))"


def brackets_of_first(function: Function) -> str:
    first = function.result.fields[0]  # pyright: ignore[reportAttributeAccessIssue]
    return brackets(Function(function.params, function.bindings, first))


def test_a_permutation_of_other_axes_is_no_transpose() -> None:
    """TVM turns any permute_dims between two products into a swap of the last two axes."""
    b = FunctionBuilder()
    x, c, a = b.input("x", (4, 1, 4)), b.input("c", (4, 4, 1)), b.input("a", (4, 1, 4))
    reversed_ = b.op("permute_dims", b.op("matmul", c, a), axes=(2, 1, 0))
    module = IRModule({"main": b.function(b.op("matmul", x, reversed_))})
    assert ADJUST(module) is module


def test_a_vector_between_matrices_is_no_matrix() -> None:
    """(a @ v) @ c is a vector times a matrix: there is no v @ c to begin with."""
    module = IRModule({"main": product(left_first, (16, 16), (16,), (16, 1))})
    assert ADJUST(module) is module


def test_vectors_and_batches_keep_their_order() -> None:
    """A vector times a batch of matrices gives a matrix, whose rows are the batches."""
    module = IRModule({"main": product(left_first, (4,), (3, 4, 5), (2, 5, 6))})
    assert ADJUST(module) is module


def test_a_product_that_is_needed_anyway_costs_nothing(check) -> None:
    def build(needed: bool) -> Function:
        b = FunctionBuilder()
        x, a, c = b.input("x", (8, 16)), b.input("a", (16, 14)), b.input("c", (14, 16))
        product = b.op("matmul", a, c)
        return b.function(b.op("matmul", x, product), *([product] if needed else []))

    assert brackets(check(ADJUST, build(needed=False))) == "((x a) c)"
    module = IRModule({"main": build(needed=True)})
    assert ADJUST(module) is module


def test_a_long_chain_is_bracketed_to_its_end(check) -> None:
    b = FunctionBuilder()
    x = b.input("a0", (4, 4))
    for i in range(1, 60):
        x = b.op("matmul", x, b.input(f"a{i}", (4, 4)))
    function = b.function(b.op("matmul", x, b.input("v", (4, 1))))
    after = check(ADJUST, function)
    assert brackets(after).endswith("(a59 v)" + ")" * 59)


def test_branches_of_an_attention_block_keep_their_meaning() -> None:
    """AdjustMatmulOrderAttentionBlock: products of batches with symbolic lengths."""
    b = FunctionBuilder()
    q, k, v = (b.input(name, (2, 4, N, 8)) for name in "qkv")
    scores = b.op("matmul", q, b.op("permute_dims", k, axes=(0, 1, 3, 2)))
    function = b.function(b.op("matmul", scores, v))
    before = IRModule({"main": function})
    after = AdjustMatmulOrder({"n": 64})(before)
    assert brackets(after["main"]) == "(q (k' v))"  # pyright: ignore[reportArgumentType]
    random = np.random.default_rng(0)
    assert_same_meaning(before, verify(after), [random.standard_normal((2, 4, 5, 8)).astype(np.float32)] * 3)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), count=st.integers(3, 5))
def test_random_chains_take_the_fewest_operations(data: st.DataObject, count: int) -> None:
    """Against all ways to put brackets, for any sizes; a greedy step may miss the best, but never makes it worse."""
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=count + 1, max_size=count + 1))
    b = FunctionBuilder()
    values: list[Var] = [b.input(f"x{i}", (sizes[i], sizes[i + 1])) for i in range(count)]
    while len(values) > 1:
        i = data.draw(st.integers(0, len(values) - 2))
        values[i : i + 2] = [b.op("matmul", values[i], values[i + 1])]
    before = IRModule({"main": b.function(values[0])})
    after = DeadCodeElimination()(verify(ADJUST(before)))
    inputs = [np.random.default_rng(i).standard_normal(sizes[i : i + 2]).astype(np.float32) for i in range(count)]
    assert_same_meaning(before, after, inputs)
    assert operations(after) <= operations(before)
    if count == 3:
        a, c, d, e = sizes
        assert operations(after) == 2 * min(a * c * d + a * d * e, c * d * e + a * c * e)


def operations(module: IRModule) -> int:
    def of(binding: Binding) -> int:
        left, right = (arg.tensor_type.shape for arg in binding.value.args)  # pyright: ignore
        return 2 * left[0] * left[1] * right[1]

    return sum(map(of, module["main"].bindings))  # pyright: ignore


SCENARIOS = {
    "AdjustMatmulOrder: LHS, RHS, dynamic, batched, idempotent": test_the_cheaper_order_is_taken,
    "AdjustMatmulOrder: DynamicWithBatchSymbolic, NoOpForFullyDynamic": test_what_is_not_cheaper_for_every_size_stays,
    "AdjustMatmulOrder: PreserveCompileTimeMatmul": test_preserve_compile_time_matmul,
    "AdjustMatmulOrder: RHSPermuteDims": test_rhs_permute_dims,
    "AdjustMatmulOrder: attention block": test_branches_of_an_attention_block_keep_their_meaning,
}
