"""Constant folding: what is evaluated, what is too large to be, and references that break their promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from kernelyard import dims
from kernelyard.errors import PassError
from kernelyard.ir import Attribute, Call, Constant, FunctionBuilder, IRModule, Op, TensorType, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard.transform.pass_infra.pass_base import PassContext, Sequential
from kernelyard.transform.simplify.dead_code_elimination import DeadCodeElimination
from kernelyard.transform.simplify.fold_constants import FoldConstants, FoldWeights

F32 = np.float32
PASS = Sequential([FoldConstants(), DeadCodeElimination()])


def test_chains_of_constants_are_evaluated(check):
    def build(b, x):
        weight = b.op("multiply", Constant(np.arange(6, dtype=F32)), 2.0)
        return b.op("add", x, b.op("reshape", weight, shape=(1, 6)))

    after = check(PASS, check.of(build))
    assert check.ops(after) == ["add"]
    assert after.bindings[0].value.args[1].data.tolist() == [[0, 2, 4, 6, 8, 10]]


def test_fields_of_constant_tuples_are_constants(check):
    b = FunctionBuilder()
    values = b.op("topk", Constant(np.float32([3, 1, 2])), k=2, axis=0, largest=True, sorted=True)
    function = b.function(b.get(values, 0), b.get(values, 1))
    after = check(PASS, function)
    assert not after.bindings
    assert [field.data.tolist() for field in after.result.fields] == [[3, 2], [0, 2]]


def test_known_shapes_are_constants(check):
    n = dims.symbol("n")
    b = FunctionBuilder()
    x = b.input("x", (n,))
    function = b.function(x, b.op("shape_tensor", dims=(2, 3)), b.op("shape_tensor", dims=(n, 3)))
    assert check.ops(check(PASS, function)) == ["shape_tensor"]


def test_constants_own_their_memory():
    b = FunctionBuilder()
    y = b.op("strided_slice", Constant(np.arange(10**5)), axes=(0,), begin=(0,), end=(2,), strides=(1,))
    result = FoldConstants()(IRModule({"main": b.function(y)}))["main"].result
    assert result.data.base is None or result.data.base.nbytes == 16
    assert result.data.flags["C_CONTIGUOUS"]


def test_what_would_grow_the_program_stays(check):
    def build(b, x):
        return b.op("add", x, b.op("broadcast_to", Constant(np.ones((1, 6), F32)), shape=(9000, 6)))

    function = check.of(build, shape=(9000, 6))
    assert check.ops(check(PASS, function)) == ["broadcast_to", "add"]
    with PassContext({"fold_constants.max_growth": 1 << 20}):
        assert check.ops(check(PASS, function)) == ["add"]
    with PassContext({"fold_constants.max_growth": 1 << 20, "fold_constants.max_bytes": 1000}):
        assert check.ops(check(PASS, function)) == ["broadcast_to", "add"]


FILTERS = 300, 200  # what is computed of 500 numbers: 240 kB


def test_weights_that_are_computed_are_constants(check):
    def build(b, x):
        angles = b.op("multiply", Constant(np.arange(FILTERS[0], dtype=F32)[:, None]), np.arange(FILTERS[1], dtype=F32))
        weight = b.op("permute_dims", b.op("cos", angles), axes=(1, 0))
        return b.op("matmul", b.op("broadcast_to", b.op("sum", x, keepdims=True), shape=(1, FILTERS[1])), weight)

    after = check(PASS, check.of(build))
    assert check.ops(after) == ["sum", "broadcast_to", "matmul"]


@pytest.mark.parametrize(("places", "after"), [(200, ["take"]), (900, ["broadcast_to", "scatter_nd", "take"])])
def test_tables_of_positions_are_constants(check, places, after):
    """Unless they are large: a table of 900 x 900 numbers would make the program larger by more than 4 MiB."""

    def build(b, x):
        table = b.op("broadcast_to", Constant(np.arange(places)), shape=(places, places))
        ends = b.op("scatter_nd", table, Constant(np.int64([[0], [2]])), Constant(np.zeros((2, places), np.int64)))
        return b.op("take", x, ends, axis=0)

    assert check.ops(check(PASS, check.of(build, shape=(places,)))) == after


def test_words_of_recurrent_weights_are_constants(check):
    """Words of integers are larger than the bytes that they are made of."""
    hidden, columns = 96, 384
    rng = np.random.default_rng(0)
    vectors = [Constant(np.ones(columns, dtype)) for dtype in (F32, np.int32, np.int32)]

    def build(b, x):
        stored = b.op("astype", Constant(rng.integers(-9, 9, (hidden, columns)).astype(np.int8)), dtype="int32")
        rows = b.op("bitwise_and", b.op("reshape", stored, shape=(hidden // 4, 4, columns)), np.array(255, np.int32))
        words = b.op("sum", b.op("left_shift", rows, np.int32([[0], [8], [16], [24]])), axes=(1,))
        states = [Constant(np.zeros((1, hidden), F32)) for _ in range(2)]
        return b.get(b.op("nn.dynamic_quantize_lstm", x, words, *vectors, *states), 0)

    after = check(PASS, check.of(build, shape=(1, 1, columns)))
    assert check.ops(after) == ["nn.dynamic_quantize_lstm"]


@pytest.mark.parametrize("reader", ["add", "matmul"])
def test_what_is_no_weight_and_what_repeats_numbers_stay(check, reader):
    def build(b, x):
        row = Constant(np.arange(FILTERS[1], dtype=F32))
        if reader == "add":
            big = b.op("multiply", row, Constant(np.arange(FILTERS[0], dtype=F32)[:, None]))
            return b.op("add", b.op("sum", x), big)
        big = b.op("broadcast_to", row, shape=FILTERS)
        return b.op("matmul", b.op("broadcast_to", b.op("sum", x, keepdims=True), shape=(1, FILTERS[0])), big)

    after = check(PASS, check.of(build))
    assert ("multiply" if reader == "add" else "broadcast_to") in check.ops(after)


def test_large_weights_are_rearranged_at_compile_time(check):
    def build(b, x):
        return b.op("matmul", x, b.op("permute_dims", Constant(np.ones((300, 400), F32)), axes=(1, 0)))

    assert check.ops(check(PASS, check.of(build, shape=(2, 400)))) == ["matmul"]


def test_references_must_keep_their_promise():
    liar = Op("liar", (), lambda types, attrs: TensorType((2,), "float32"), reference=lambda: np.zeros(3, F32))
    b = FunctionBuilder()
    function = b.function(b.bind(Call(liar, [])))
    with pytest.raises(PassError, match="liar does not give") as info:
        FoldConstants()(IRModule({"main": function}))
    assert info.value.expected == "Tensor[(2,), float32]"


def test_effects_and_unknown_dims_are_not_folded():
    def make(**changes):
        rule = lambda types, attrs: TensorType((), "float32")  # noqa: E731
        op = Op("source", (), rule, reference=lambda **attrs: np.float32(1), **changes)
        b = FunctionBuilder()
        attrs = {"size": dims.symbol("n")} if "attributes" in changes else {}
        return IRModule({"main": b.function(b.bind(Call(op, [], attrs)))})

    assert isinstance(FoldConstants()(make())["main"].result, Constant)
    for module in (make(pure=False), make(attributes={"size": Attribute("dim")})):
        assert FoldConstants()(module) is module


@settings(max_examples=40, deadline=None)
@given(modules())
def test_a_program_of_constants_is_folded_away(program):
    function = program.module["main"]
    b = FunctionBuilder()
    constants = [b.bind(Constant(array)) for array in program.inputs]
    results = b.call_function("body", constants, function.result_type)
    bound = IRModule({"main": b.function(results), "body": function})
    flat = type(function)([], [*_bind(function, program.inputs)], function.result)
    after = verify(PASS(IRModule({"main": flat})))
    assert not after["main"].bindings
    assert_same_meaning(bound, after, [])


def _bind(function, arrays):
    from kernelyard.ir import Binding

    yield from (Binding(param, Constant(array)) for param, array in zip(function.params, arrays, strict=True))
    yield from function.bindings


# --- quantized weights ------------------------------------------------------------------------------------------------
def weighted(product: str, size: int = 4, dtype: str = "int8", transposed: bool = False):
    """A product with a dequantized weight, plus a dequantized bias."""
    b = FunctionBuilder()
    is_matmul = product == "matmul"
    codes = np.ones((size, size) if is_matmul else (size, size, 3, 3), dtype)
    weight = b.op("dequantize", codes, F32(0.5), np.zeros((), dtype))
    weight = b.op("permute_dims", weight, axes=(1, 0)) if transposed else weight
    y = b.op(product, b.input("x", (2, size) if is_matmul else (1, size, 8, 8)), weight)
    bias = b.op("dequantize", np.ones(y.tensor_type.shape[-1], np.int32), F32(0.5), np.int32(0))
    return b.function(b.op("add", y, bias))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("product", ["matmul", "nn.conv2d", "nn.conv2d_transpose"])
def test_quantized_weights_of_products_stay_stored(check, product, transposed):
    transposed = transposed and product == "matmul"
    after = check(PASS, weighted(product, transposed=transposed))
    assert check.ops(after) == ["dequantize", *["permute_dims"][: int(transposed)], product, "add"]
    folded = check(Sequential([FoldWeights(), DeadCodeElimination()]), after)
    assert check.ops(folded) == [product, "add"]


def test_quantized_weights_that_are_put_together_first_stay_stored(check):
    def build(b, x):
        halves = [Constant(np.full((4, 2), n, np.int8)) for n in (1, 2)]
        weight = b.op("dequantize", b.op("concat", *halves, axis=1), F32(0.5), np.int8(0))
        return b.op("matmul", x, weight)

    assert check.ops(check(PASS, check.of(build, shape=(2, 4)))) == ["dequantize", "matmul"]


@pytest.mark.parametrize("product", ["matmul", "nn.conv2d"])
def test_quantized_weights_whose_parameters_are_computed_stay_stored(check, product):
    def build(b, x):
        shape = (4, 4) if product == "matmul" else (4, 4, 3, 3)
        scales, zeros = b.op("reshape", np.full((1, 4), 0.5, F32), shape=(4,)), np.zeros(4, np.int64)
        zeros = b.op("astype", zeros, dtype="int8")
        return b.op(product, x, b.op("dequantize", np.full(shape, 2, np.int8), scales, zeros, axis=0))

    after = check(PASS, check.of(build, shape=(2, 4) if product == "matmul" else (1, 4, 5, 5)))
    assert check.ops(after) == ["dequantize", product]


def test_sixteen_bits_are_folded(check):
    assert check.ops(check(PASS, weighted("matmul", dtype="int16"))) == ["matmul", "add"]


@pytest.mark.parametrize(("product", "stays"), [("matmul", True), ("nn.conv2d", False)])
def test_large_weights_stay_stored_for_matmuls_alone(check, product, stays):
    size = 512 if product == "matmul" else 96
    after = check(Sequential([FoldConstants(), FoldWeights(), DeadCodeElimination()]), weighted(product, size))
    assert ("dequantize" in check.ops(after)) == stays
