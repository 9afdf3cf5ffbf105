"""Rows in registers, and tiles of attention that a causal mask hides: right, without races, at sizes that fit no tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kernelyard import dtypes
from kernelyard.ir import TensorType
from kernelyard.tir.interpreter import evaluate
from kernelyard_native_cuda.drivers.emulator import Checks, Emulator
from kernelyard_native_cuda.schedule.causal_mask import mask_of
from kernelyard_native_cuda.schedule.contraction import contraction_of
from kernelyard_native_cuda.schedule.groups import with_groups
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE
from kernelyard_native_cuda.schedule.padding import inline_padding
from kernelyard_native_cuda.schedule.rules import schedule, stages_of

from .conftest import assert_close, generate, run_on
from .test_conv_and_attention import attention
from .test_rules import N, lower, random


@pytest.fixture
def racing(emulator: Emulator) -> Iterator[Emulator]:
    """The emulator, which looks for races on tensors, too."""
    checks = emulator.checks
    emulator.checks = Checks(tensors=True)
    yield emulator
    emulator.checks = checks


def rows_of(op: str, size: int, dtype: str) -> Any:
    row, scale = TensorType((N, size), dtype), TensorType((size,), dtype)
    if op == "nn.layer_norm":
        return lower(op, row, scale, scale, axes=(1,))
    return lower(op, row, scale, axes=(1,)) if op == "nn.rms_norm" else lower(op, row, axis=1)


OPS = ("nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.rms_norm")


@pytest.mark.parametrize(
    ("size", "dtype", "stays"),
    [
        (64, "float16", True),
        (1000, "bfloat16", True),
        (2048, "float32", True),
        (8200, "float16", True),
        (77, "float16", False),
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_rows_are_read_once(racing, op, size, dtype, stays):
    function = rows_of(op, size, dtype)
    text = "\n".join(kernel.text for kernel in schedule(function, "f", ANY_MACHINE).kernels)
    assert ("piece" in text) == stays
    inputs = [
        random(*shape).astype(dtypes.to_numpy(dtype)) for shape in [(3, size), *[(size,)] * (len(function.inputs) - 1)]
    ]
    if stays:
        assert text.count("pack_at<") == len(inputs)
        assert "__shared__" not in text
        assert "SHARED" not in text
    (found,) = run_on(racing, generate({"f": function}), "f", inputs, {"n": 3})
    assert_close(found, evaluate(function, inputs, {"n": 3})[0], dtype)


def test_extremes_of_a_row_are_as_in_the_reference(racing):
    function = rows_of("nn.softmax", 64, "float16")
    x = random(4, 64).astype(np.float16)
    x[0, 3], x[1, 5], x[2, :] = np.nan, -np.inf, -np.inf
    (found,) = run_on(racing, generate({"f": function}), "f", [x], {"n": 4})
    assert_close(found, evaluate(function, [x], {"n": 4})[0], "float16")


# --- columns ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ["sum", "max", "mean"])
@pytest.mark.parametrize(("shape", "blocks"), [((4096, 256), 64), ((96, 40), 1), ((2048, 24), 6)])
def test_columns_are_reduced_over_the_whole_device(racing, op, shape, blocks):
    function = lower(op, TensorType(shape, "float32"), axes=(0,))
    kernels = schedule(function, "f", ANY_MACHINE).kernels
    assert [kernel.blocks[0] for kernel in kernels] == [blocks, 1]
    x = random(*shape)
    (found,) = run_on(racing, generate({"f": function}), "f", [x])
    np.testing.assert_allclose(found, evaluate(function, [x])[0], rtol=1e-4, atol=1e-3)


# --- causal attention ---------------------------------------------------------------------------------------------------
def causal(rows: Any, columns: Any, heads: int = 2, groups: int = 2, kind: str = "bottom_right") -> Any:
    return attention((1, rows, heads, 16), (1, columns, groups, 16), (1, columns, groups, 16), "float16", kind)


@pytest.mark.parametrize(("kind", "offset"), [("top_left", 0), ("bottom_right", 7)])
def test_a_causal_mask_is_known_by_its_offset(kind, offset):
    function = causal(N, N + 7, kind=kind)
    stage = with_groups(stages_of(inline_padding(function))[0])
    it = contraction_of(stage)
    assert it is not None
    column, row = (it.a.own, it.b.own) if it.a.own[0].name == "s3" else (it.b.own, it.a.own)
    mask = mask_of(stage.blocks[-1], row, column[0])
    assert mask is not None
    assert mask.offset == offset


@pytest.mark.parametrize("kind", ["top_left", "bottom_right"])
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (130, 130), (64, 200), (150, 70)])
def test_hidden_tiles_change_nothing(racing, kind, rows, columns):
    function = causal(rows, columns, kind=kind)
    shapes = (1, rows, 2, 16), (1, columns, 2, 16), (1, columns, 2, 16)
    inputs = [random(*shape).astype(np.float16) for shape in shapes]
    (found,) = run_on(racing, generate({"f": function}), "f", inputs)
    assert_close(found, evaluate(function, inputs)[0], "float16")


def test_hidden_keys_are_not_read(racing):
    """Tiles that no query of a block sees may hold anything."""
    function = causal(64, 200, kind="top_left")
    inputs = [random(1, size, 2, 16).astype(np.float16) for size in (64, 200, 200)]
    wanted = evaluate(function, inputs)[0]
    for array in inputs[1:]:
        array[:, 64:] = np.nan
    (found,) = run_on(racing, generate({"f": function}), "f", inputs)
    assert_close(found, wanted, "float16")


@pytest.mark.parametrize("shape", [(N, 1, 64), (1, N, 8), (N, 4, 1, 16)])
def test_rows_of_results_over_one_element_each_are_no_rows_in_registers(racing, shape):
    known = tuple(3 if each == N else each for each in shape)
    function = lower("nn.softmax", TensorType(shape, "float32"), axis=known.index(1))
    (found,) = run_on(racing, generate({"f": function}), "f", [random(*known)], {"n": 3})
    np.testing.assert_array_equal(found, np.ones(known, np.float32))
