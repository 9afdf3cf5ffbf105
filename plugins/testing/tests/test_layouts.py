"""Layouts: the same tensors, however they lie or come about."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import PluginError
from kernelyard.ir import Call
from kernelyard.testing import assert_allclose, evaluate, op_cases
from kernelyard.testing.conformance.cases import all_cases
from kernelyard.testing.conformance.claims import parse_claims
from kernelyard.testing.conformance.layouts import IN_GRAPH, IN_MEMORY, LAYOUTS, changes, insert_into_graph, lay_out

ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
# What of a layout NumPy can tell of the array.
SEEN = {
    "strided": lambda array: not array.flags.forc and array.base.size == 8 * ARRAY.size,
    "fortran": lambda array: array.flags.f_contiguous and not array.flags.c_contiguous,
    "reversed": lambda array: all(stride < 0 for stride in array.strides),
    "byte-swapped": lambda array: not array.dtype.isnative,
    "misaligned": lambda array: not array.flags.aligned,
    "read-only": lambda array: not array.flags.writeable,
}


@pytest.mark.parametrize("layout", IN_MEMORY)
def test_in_memory(layout: str) -> None:
    (laid_out,) = lay_out(layout, [ARRAY])
    assert laid_out.tolist() == ARRAY.tolist()
    assert SEEN[layout](laid_out)
    assert changes(layout, [ARRAY])
    assert not changes(layout, [np.ones(1, np.float32)])  # one element lies as it lies


def test_what_a_layout_does_not_change_is_told() -> None:
    assert not changes("fortran", [np.zeros(3, np.float32)])
    assert not changes("byte-swapped", [np.zeros(3, np.int8)])
    assert changes("byte-swapped", [np.zeros(3, np.int8), np.zeros(3, np.float32)])


@pytest.mark.parametrize("layout", IN_GRAPH)
@pytest.mark.parametrize("op", ["matmul", "nn.conv2d", "nn.softmax", "concat", "add", "split", "take", "permute_dims"])
def test_in_graph(op: str, layout: str) -> None:
    """The operator's operands come from another one, which gives what the sample's operands are."""
    found = 0
    for case in op_cases([op]):
        laid_out = insert_into_graph(layout, case)
        if laid_out is None:
            continue
        found += 1
        calls = [b.value for b in laid_out.module.graph_functions()["main"].bindings if isinstance(b.value, Call)]
        assert calls[-1].op_name == op
        assert {call.op_name for call in calls} - {op} == set(laid_out.added)
        for actual, expected in zip(evaluate(laid_out.module, laid_out.feeds), case.expected(), strict=True):
            assert_allclose(actual, expected)
    assert found


def test_no_operand_of_too_low_a_rank_is_reordered() -> None:
    (vector,) = [case for case in op_cases(["nn.relu"]) if case.sample.inputs[0].ndim == 1][:1]
    assert insert_into_graph("permuted", vector) is None
    assert insert_into_graph("transposed", vector) is None
    assert insert_into_graph("sliced", vector) is not None


@pytest.mark.parametrize("layout", IN_MEMORY)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool", "int64"])
def test_programs_take_feeds_in_any_layout(layout: str, dtype: str) -> None:
    """The runtime half of every backend gets dense memory, since the core sees to that."""
    from kernelyard.ir import FunctionBuilder, IRModule

    b = FunctionBuilder()
    exe = ky.compile(
        IRModule({"main": b.function(b.op("permute_dims", b.input("x", ARRAY.shape, dtype), axes=(2, 0, 1)))})
    )
    given = (ARRAY % 5).astype(dtype)
    assert exe(*lay_out(layout, [given])).numpy().tolist() == given.transpose(2, 0, 1).tolist()


def test_all_layouts_are_claimed_unless_they_are_named() -> None:
    claims = 'ops = ["matmul"]\ndtypes = ["float32"]\n'
    assert parse_claims(claims, "").layouts == LAYOUTS
    some = parse_claims(claims + 'layouts = ["strided", "sliced"]', "")
    forms = {name.rsplit(", ", 1)[1] for name in all_cases("acme", some) if name.startswith("L1 matmul")}
    assert forms == {"parameters)", "constants)", "strided)", "sliced)"}
    assert not parse_claims(claims + "layouts = []", "").layouts
    with pytest.raises(PluginError, match="'layouts' has an unknown entry"):
        parse_claims(claims + 'layouts = ["blocked"]', "")
