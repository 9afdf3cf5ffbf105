"""Steps that kernels take as sizes grow: none takes more than its operands and results grow, but for products."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  (declares the vocabulary)
from kernelyard import dims, dtypes, legalize
from kernelyard.errors import TypeInferenceError
from kernelyard.ir import Op, TensorType, all_ops
from kernelyard.tir import PrimFunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import INDEX, cast
from kernelyard.tir.sorting import work_of

SIZE = 64
# Filters are symbols here as pictures are, queries as many as keys, and the states of recurrent layers are multiplied:
# these are products by definition.
PRODUCTS = {
    *(f"nn.conv{rank}d{kind}" for rank in (1, 2, 3) for kind in ("", "_transpose")),
    *(
        "nn.attention",
        "nn.attention_cached",
        "nn.attention_paged",
        "nn.attention_var_len",
        "nn.dynamic_quantize_lstm",
        "nn.gru",
        "nn.rnn",
    ),
}


def symbolic_functions(op: Op) -> Iterator[tuple[str, PrimFunc]]:
    """The op's samples with a symbol for each size above 1, where its type rule can do with symbols."""
    for sample in op.samples():
        shapes = [tuple(dims.symbol(f"n{size}") if size > 1 else size for size in np.shape(a)) for a in sample.inputs]
        types = [
            TensorType(shape, dtypes.from_numpy(np.asarray(a).dtype))
            for shape, a in zip(shapes, sample.inputs, strict=True)
        ]
        attrs = op.check_attributes(sample.attributes)
        try:
            result = op.infer_type(types, attrs)
        except TypeInferenceError:
            continue
        yield sample.label, legalize.legalize_call(op.name, types, attrs, result)


def grows_too_fast(function: PrimFunc) -> list[str]:
    """The symbols that, doubled, make for more than twice the steps, and for many more than elements of parameters."""
    steps: dims.Dim = 0
    elements: dims.Dim = 1
    for block in function.blocks:
        steps = steps + work_of(block)
    for buffer in function.params:
        elements = elements + buffer.numel
    before = dict.fromkeys(function.symbols, SIZE)

    def growth(of: dims.Dim, symbol: str) -> float:
        return dims.evaluate(of, {**before, symbol: 2 * SIZE}) / max(dims.evaluate(of, before), 1)

    return [each for each in function.symbols if growth(steps, each) > max(2.2, 1.5 * growth(elements, each))]


OPS = [op for op in all_ops() if legalize.has_rule(op.name) and op.samples()]


@pytest.mark.parametrize("op", [op for op in OPS if op.name not in PRODUCTS], ids=lambda op: op.name)
def test_no_kernel_is_quadratic(op):
    found = dict(symbolic_functions(op))
    assert found
    assert {label: symbols for label, function in found.items() if (symbols := grows_too_fast(function))} == {}


@pytest.mark.parametrize("op", [op for op in OPS if op.name in PRODUCTS], ids=lambda op: op.name)
def test_products_are_seen(op):
    """Exceptions of the test above would fail it."""
    assert any(grows_too_fast(function) for _, function in symbolic_functions(op))


def test_ranks_by_counting_are_seen():
    """An order found by comparing each element with all others, as topk once did it."""
    b = PrimFuncBuilder()
    n = dims.symbol("n")
    x = b.input("x", TensorType((n,), "float32"))
    ranks = b.reduce("sum", (n,), (n,), lambda at, p: cast(x[p[0]] < x[at[0]], INDEX))
    assert grows_too_fast(b.finish((ranks,))) == ["n"]
