"""What GEMM libraries ask: whatever is answered to be one call is right when it is run as one; the rest has a reason.

Each of these products and biases passes TVM's check of cuBLAS patterns and then fails in its runtime, or gives numbers
that are wrong: a bias is read past its end, batches are paired that do not belong together.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard import dims
from kernelyard.dims import Shape, symbol
from kernelyard.ir import FunctionBuilder
from kernelyard.patterns import Decline, FusionPattern, Match, is_op, match, wildcard
from kernelyard.patterns.checks import Gemm, check_bias, gemm_of
from kernelyard.patterns.templates import matmul, with_bias
from kernelyard.testing.strategies import tensors

A, B = symbol("a"), symbol("b")


def product(left: Shape, right: Shape) -> Match:
    b = FunctionBuilder()
    y = b.op("matmul", b.input("x", left), b.input("w", right))
    found = match(matmul(), y, b.function(y))
    assert found is not None
    return found


def biased(left: Shape, right: Shape, bias: Shape) -> Match:
    b = FunctionBuilder()
    y = b.op("add", b.op("matmul", b.input("x", left), b.input("w", right)), b.input("bias", bias))
    found = match(with_bias(matmul()), y, b.function(y))
    assert found is not None
    return found


def refusal(answer: Gemm | Decline | None) -> str:
    assert isinstance(answer, Decline), answer
    return answer.code


def test_a_bias_of_one_number_is_no_bias_of_a_gemm() -> None:
    for bias in ((), (1,), (2, 1), (1, 1)):
        assert refusal(check_bias(biased((2, 8), (8, 5), bias))) == "bias"
    assert check_bias(biased((2, 8), (8, 5), (5,))) is None
    assert check_bias(biased((3, 2, 8), (8, 5), (1, 1, 5))) is None
    assert check_bias(biased((2, 8), (8, A), (A,))) is None
    assert check_bias(biased((2, 8), (8, 1), (1,))) is None, "one column has one number"


def test_a_product_without_a_bias_passes() -> None:
    assert check_bias(product((2, 8), (8, 5))) is None


def test_a_bias_that_is_wider_than_the_product_widens_it() -> None:
    for bias in ((7,), (3, 1, 1), (A,), (4, 2, 1)):
        assert refusal(check_bias(biased((2, 8), (8, 1), bias))) == "bias"


def test_batches_of_equal_number_and_other_shape_are_not_the_same() -> None:
    assert refusal(gemm_of(product((2, 1, 3, 4), (1, 2, 4, 5)))) == "batch"
    assert refusal(gemm_of(product((2, 1, 3, 4), (2, 4, 5)))) == "batch"
    assert gemm_of(product((2, 6, 3, 4), (2, 6, 4, 5))) == Gemm(12, 3, 5, 4)
    assert gemm_of(product((1, 2, 3, 4), (2, 4, 5))) == Gemm(2, 3, 5, 4)


def test_a_right_side_of_one_batch_serves_all_rows() -> None:
    for right in ((4, 5), (1, 4, 5), (1, 1, 4, 5)):
        assert gemm_of(product((6, 3, 4), right)) == Gemm(1, 18, 5, 4)
    assert gemm_of(product((3, 4), (6, 4, 5))) == Gemm(6, 3, 5, 4, shares_lhs=True)


def test_symbolic_batches_are_compared() -> None:
    assert refusal(gemm_of(product((A, 3, 4), (B, 4, 5)))) == "batch"
    assert gemm_of(product((A, 3, 4), (A, 4, 5))) == Gemm(A, 3, 5, 4)
    assert gemm_of(product((3, 4), (A, 4, 5))) == Gemm(A, 3, 5, 4, shares_lhs=True)
    assert gemm_of(product((A, B, 4), (4, 5))) == Gemm(1, A * B, 5, 4), "no size is asked to be a number"


def test_vectors_are_no_matrices() -> None:
    for left, right in (((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((4,), (2, 4, 5))):
        assert refusal(gemm_of(product(left, right))) == "rank"


def test_the_two_kinds_of_gelu_are_two_operators() -> None:
    """The one that libraries offer is often the approximation by tanh, and never the other in disguise."""
    b = FunctionBuilder()
    exact, approximate = (b.op(name, b.input("x", (2,))) for name in ("nn.gelu", "nn.gelu_tanh"))
    function = b.function(exact, approximate)
    found = [match(is_op("nn.gelu_tanh")(wildcard()), y, function) is not None for y in (exact, approximate)]
    assert found == [False, True]


def test_a_name_says_nothing_about_what_a_pattern_does() -> None:
    """An activation is the operator that was matched, not the part of a name that looks like one."""
    b = FunctionBuilder()
    y = b.op("nn.gelu", b.op("matmul", b.input("x", (2, 4)), b.input("w", (4, 5))))
    pattern = FusionPattern("acme.matmul_relu_bias", is_op("nn.gelu")(matmul()).capture("activation"))
    found = match(pattern.pattern, y, b.function(y))
    assert found is not None
    assert found.call_of("activation").op_name == "nn.gelu"
    assert "bias" not in found


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_one_call_is_right_as_one_call(data: st.DataObject) -> None:
    """The operands as they lie in memory, walked through as a strided batch: NumPy's product."""
    batches = st.lists(st.integers(1, 3), max_size=3)
    rows, inner, columns = (data.draw(st.integers(1, 4)) for _ in range(3))
    left, right = (*data.draw(batches), rows, inner), (*data.draw(batches), inner, columns)
    try:
        np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        return
    gemm = gemm_of(product(left, right))
    if isinstance(gemm, Decline):
        assert left[:-2] != right[:-2]
        return
    x, w = data.draw(tensors(left)), data.draw(tensors(right))
    batch = dims.evaluate(gemm.batch, {})
    lhs = np.broadcast_to(x.reshape(-1, gemm.rows, gemm.inner), (batch, gemm.rows, gemm.inner))  # pyright: ignore
    result = lhs @ w.reshape(batch, gemm.inner, gemm.columns)  # pyright: ignore
    np.testing.assert_allclose(result.reshape(np.matmul(x, w).shape), np.matmul(x, w), rtol=1e-5, atol=1e-5)


SCENARIOS = {
    "a GEMM's bias: a scalar or one element (defect of TVM)": test_a_bias_of_one_number_is_no_bias_of_a_gemm,
    "a GEMM's bias: wider than the product (defect of TVM)": test_a_bias_that_is_wider_than_the_product_widens_it,
    "a GEMM's batches: equal number, other shape (defect of TVM)": (
        test_batches_of_equal_number_and_other_shape_are_not_the_same
    ),
    "a GEMM's batches: one on the right (defect of TVM)": test_a_right_side_of_one_batch_serves_all_rows,
    "a GEMM's batches: two symbols (defects of TVM)": test_symbolic_batches_are_compared,
    "a GEMM's operands: vectors (defect of TVM)": test_vectors_are_no_matrices,
    "gelu and its approximation (defect of TVM)": test_the_two_kinds_of_gelu_are_two_operators,
    "behaviour read from a name (defect of TVM)": test_a_name_says_nothing_about_what_a_pattern_does,
}
