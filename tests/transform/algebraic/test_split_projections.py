"""Products with queries, keys and values in them, taken apart for attention."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir import Expr, Function, FunctionBuilder, to_text
from kernelyard.transform.algebraic.split_projections import SplitProjections
from kernelyard.transform.simplify.canonicalize import Canonicalize

RNG = np.random.default_rng(8)
WIDTH, HEADS, SIZE = 12, 2, 4
COLUMNS = 3 * HEADS * SIZE
N = dims.symbol("n")


class Model:
    """A function that begins with a product of all projections."""

    def __init__(self, *rows: Dim, bias: bool = False, columns: int = COLUMNS) -> None:
        self.b = FunctionBuilder()
        self.rows = rows
        x = self.b.input("x", (*rows, WIDTH))
        self.stacked = self.b.op("matmul", x, RNG.standard_normal((WIDTH, columns)).astype(np.float32))
        if bias:
            self.stacked = self.b.op("add", self.stacked, RNG.standard_normal(columns).astype(np.float32))

    def reshape(self, x: Expr, *shape: Dim) -> Expr:
        return self.b.op("reshape", x, shape=shape)

    def permute(self, x: Expr, *axes: int) -> Expr:
        return self.b.op("permute_dims", x, axes=axes)

    def attend(self, *heads: Expr, more: Expr | None = None) -> Function:
        result = self.b.op("nn.attention", *heads)
        return self.b.function(result) if more is None else self.b.function(result, more)


def leading_thirds(model: Model) -> list[Expr]:
    """Split what was permuted to three, batch, heads, length and size."""
    batch, length = model.rows
    x = model.permute(model.reshape(model.stacked, batch, length, 3, HEADS, SIZE), 2, 0, 3, 1, 4)
    pieces = model.b.op("split", x, axis=0, sections=(1, 1, 1))
    heads = [model.reshape(model.b.get(pieces, i), batch, HEADS, length, SIZE) for i in range(3)]
    return [model.permute(each, 0, 2, 1, 3) for each in heads]


def taken(model: Model) -> list[Expr]:
    """Take what was permuted to three, length and batch, as multi-head attention of PyTorch does."""
    length, batch = model.rows
    x = model.permute(model.reshape(model.stacked, 1, length, batch, 3, HEADS * SIZE), 3, 1, 2, 0, 4)
    x = model.reshape(x, 3, length, batch, HEADS * SIZE)
    heads = [model.b.op("take", x, np.int64(i - 3 * (i == 2)), axis=0) for i in range(3)]
    heads = [model.permute(model.reshape(each, length, batch * HEADS, SIZE), 1, 0, 2) for each in heads]
    return [model.permute(model.reshape(each, batch, HEADS, length, SIZE), 0, 2, 1, 3) for each in heads]


def thirds_of_heads(model: Model) -> list[Expr]:
    """Slice each head, which has its query, key and value next to one another."""
    batch, length = model.rows
    x = model.reshape(model.stacked, batch, length, HEADS, 3 * SIZE)
    ranges = [{"begin": (i * SIZE,), "end": ((i + 1) * SIZE,)} for i in range(3)]
    return [model.b.op("strided_slice", x, axes=(3,), strides=(1,), **each) for each in ranges]


def of_flat_rows(model: Model) -> list[Expr]:
    """Split rows that batch and length are merged in."""
    pieces = model.b.op("split", model.stacked, axis=1, sections=(HEADS * SIZE,) * 3)
    return [model.reshape(model.b.get(pieces, i), 2, 5, HEADS, SIZE) for i in range(3)]


def calls(function: Function) -> list[str]:
    return re.findall(r" = ([\w.]+)\(", to_text(function))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ((2, 5), leading_thirds),
        ((N, 5), leading_thirds),
        ((2, N), leading_thirds),
        ((7, 1), taken),
        ((N, 1), taken),
        ((2, N), thirds_of_heads),
        ((10,), of_flat_rows),
    ],
)
def test_each_projection_is_a_product_that_attention_reads(check, rows, parts, bias) -> None:
    model = Model(*rows, bias=bias)
    after = check.clean(SplitProjections(), model.attend(*parts(model)))
    found = calls(after)
    assert found.count("matmul") == 3
    assert found.count("add") == 3 * bias
    assert set(found) <= {"matmul", "add", "reshape", "nn.attention"}
    weights = [b.value.args[1].data for b in after.bindings if b.value.op_name == "matmul"]
    assert all(weight.shape == (WIDTH, HEADS * SIZE) for weight in weights)


def test_heads_may_be_fewer_for_keys_and_values(check) -> None:
    model = Model(2, N, columns=4 * SIZE)
    pieces = model.b.op("split", model.stacked, axis=2, sections=(2 * SIZE, SIZE, SIZE))
    shapes = [(2, N, 2, SIZE), (2, N, 1, SIZE), (2, N, 1, SIZE)]
    heads = [model.reshape(model.b.get(pieces, i), *shape) for i, shape in enumerate(shapes)]
    after = check.clean(SplitProjections(), model.attend(*heads))
    assert sorted(calls(after)) == sorted(["matmul"] * 3 + ["reshape"] * 3 + ["nn.attention"])


def unchanged(model: Model, function: Function, check) -> bool:
    return calls(check(SplitProjections(), function)) == calls(function)


def test_a_product_that_somebody_else_reads_stays(check) -> None:
    model = Model(2, 5)
    assert unchanged(model, model.attend(*leading_thirds(model), more=model.stacked), check)
    model = Model(2, 5)
    heads = leading_thirds(model)
    assert unchanged(model, model.attend(*heads, more=model.b.op("nn.relu", heads[1])), check)


def test_rows_that_are_mixed_with_heads_stay(check) -> None:
    model = Model(7, 3)
    assert unchanged(model, model.attend(*taken(model)), check)


@pytest.mark.parametrize("rows", [(7, 3), (N, 3), (7, N)])
def test_rows_that_attention_reads_in_another_order_are_permuted_before_the_product(check, rows) -> None:
    model = Model(*rows, bias=True)
    function = check.clean(Canonicalize(), model.attend(*taken(model)))
    found = calls(check.clean(SplitProjections(), function))
    assert found.count("permute_dims") == 1  # of what is multiplied, for all three
    assert found.count("matmul") == 3
    assert set(found) <= {"permute_dims", "matmul", "add", "reshape", "nn.attention"}


def test_rows_that_were_permuted_before_the_product_are_read_as_they_were(check) -> None:
    model = Model.__new__(Model)
    model.b, model.rows = FunctionBuilder(), (7, 3)
    x = model.permute(model.b.input("x", (3, 7, WIDTH)), 1, 0, 2)
    model.stacked = model.b.op("matmul", x, RNG.standard_normal((WIDTH, COLUMNS)).astype(np.float32))
    function = check.clean(Canonicalize(), model.attend(*taken(model)))
    assert set(calls(check.clean(SplitProjections(), function))) == {"matmul", "reshape", "nn.attention"}


def test_columns_that_are_read_twice_stay(check) -> None:
    model = Model(2, 5)
    query, key, _ = leading_thirds(model)
    other = leading_thirds(model)[1]
    x = model.b.op("nn.attention", query, key, key)
    y = model.b.op("nn.attention", other, leading_thirds(model)[0], leading_thirds(model)[2])
    assert unchanged(model, model.b.function(model.b.op("add", x, y)), check)


def test_whole_products_stay(check) -> None:
    model = Model(2, 5, columns=HEADS * SIZE)
    heads = model.reshape(model.stacked, 2, 5, HEADS, SIZE)
    assert unchanged(model, model.attend(heads, heads, heads), check)


def test_weights_that_are_no_constants_stay(check) -> None:
    b = FunctionBuilder()
    stacked = b.op("matmul", b.input("x", (2, 5, WIDTH)), b.input("w", (WIDTH, COLUMNS)))
    pieces = b.op("split", stacked, axis=2, sections=(HEADS * SIZE,) * 3)
    heads = [b.op("reshape", b.get(pieces, i), shape=(2, 5, HEADS, SIZE)) for i in range(3)]
    function = b.function(b.op("nn.attention", *heads))
    assert calls(check(SplitProjections(), function)) == calls(function)
