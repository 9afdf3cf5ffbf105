"""Which models are batched: found out from shapes, then tried out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from serve_models import scale

import kernelyard as ky
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard_serve.rows import batch_symbol, warm_sizes, why_not_batched


def compiled(build: Callable[[FunctionBuilder, Any], Any], *shape: int | str) -> ky.Executable:
    b = FunctionBuilder()
    x = b.input("x", tuple(dims.symbol(dim) if isinstance(dim, str) else dim for dim in shape))
    return ky.compile(IRModule({"main": b.function(build(b, x))}), backends=[])


def along(op: str, axis: int) -> Callable[[FunctionBuilder, Any], Any]:
    return lambda b, x: b.op(op, x, axis=axis)


def test_rows_of_a_network_are_batched() -> None:
    exe = ky.compile(scale(2), backends=[])
    assert batch_symbol(exe) == "n"
    assert warm_sizes(exe, ()) == [{}]
    assert why_not_batched(exe, [{}]) is None


@pytest.mark.parametrize("op", ["nn.softmax", "cumsum"])
def test_what_looks_at_other_rows_is_not(op: str) -> None:
    assert why_not_batched(compiled(along(op, 1), "n", 4), [{}]) is None
    assert "depend on one another" in str(why_not_batched(compiled(along(op, 0), "n", 4), [{}]))


@pytest.mark.parametrize("shape", [(2, 4), ("n", "n"), (4, "n")], ids=str)
def test_the_first_axis_is_a_symbol_of_its_own(shape: tuple[int | str, ...]) -> None:
    exe = compiled(along("nn.softmax", 1), *shape)
    assert batch_symbol(exe) is None
    assert "no symbolic first axis" in str(why_not_batched(exe, [{}]))


def test_outputs_have_the_rows_too() -> None:
    exe = compiled(lambda b, x: b.op("permute_dims", x, axes=(1, 0)), "n", 4)
    assert batch_symbol(exe) is None


def test_other_symbols_are_to_be_named() -> None:
    exe = compiled(along("nn.softmax", 1), "n", "seq")
    assert warm_sizes(exe, ()) == []
    assert "sizes of seq" in str(why_not_batched(exe, []))
    sizes = warm_sizes(exe, [{"seq": 8, "other": 1}, {"other": 2}, {"n": 2}])
    assert sizes == [{"seq": 8}]
    assert why_not_batched(exe, sizes) is None
    assert np.isfinite(exe(np.ones((2, 8), np.float32)).numpy()).all()
