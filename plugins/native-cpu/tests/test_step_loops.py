"""Loops over steps: recurrent layers as one kernel, against their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelyard import dims, dtypes, legalize
from kernelyard.ir import TensorType, get_op
from kernelyard.tir import PrimFunc
from kernelyard.tir.packing import pack_inputs
from kernelyard_native_cpu.generator import write_module
from kernelyard_native_cpu.machine import Machine, features_of_level, resolve_machine
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.packing import choose_packings
from kernelyard_native_cpu.schedule.rules import make_plan

from .conftest import compile_one, run_module

T = dims.symbol("t")


def operands(name: str, steps: int, batch: int, hidden: int) -> list[np.ndarray]:
    shapes = {
        "nn.lstm": [(steps, batch, 4 * hidden), (hidden, 4 * hidden), (batch, hidden), (batch, hidden)],
        "nn.gru": [(steps, batch, 3 * hidden), (hidden, 2 * hidden), (hidden, hidden), (hidden,), (batch, hidden)],
        "nn.rnn": [(steps, batch, hidden), (hidden, hidden), (batch, hidden)],
    }
    rng = np.random.default_rng(steps)
    return [(rng.standard_normal(shape) / np.sqrt(hidden)).astype(np.float32) for shape in shapes[name]]


def lowered(name: str, arrays: list[np.ndarray], *, is_open: bool = False, **attributes: Any) -> PrimFunc:
    types = [TensorType(np.shape(array), dtypes.from_numpy(array.dtype)) for array in arrays]
    if is_open:
        types[0] = TensorType((T, *types[0].shape[1:]), types[0].dtype)
    attrs = get_op(name).check_attributes(attributes)
    return legalize.legalize_call(name, types, attrs, get_op(name).infer_type(types, attrs))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("sizes", [(5, 1, 300), (4, 9, 160)], ids=["a sequence", "several"])
@pytest.mark.parametrize("name", ["nn.lstm", "nn.gru", "nn.rnn"])
def test_layers_large_enough_for_threads(name: str, sizes: tuple[int, int, int], is_open: bool, threads: int) -> None:
    arrays = operands(name, *sizes)
    module = compile_one(lowered(name, arrays, is_open=is_open, reverse=True))
    op = get_op(name)
    assert op.reference is not None
    wanted = op.reference(*arrays, **op.check_attributes({"reverse": True}))
    found = run_module(module, "kernel", arrays, {"t": sizes[0]}, threads)
    for result, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 8])
def test_recurrent_weights_are_packed_once(batch: int) -> None:
    """The product of a step reads blocks of constant weights in vectors, and all else of a step is elementwise."""
    machine = resolve_machine("x86-64-v4")
    function = lowered("nn.lstm", operands("nn.lstm", 3, batch, 128))
    packings = choose_packings(function, [1], machine)
    assert list(packings) == [1]
    groups = [group for group in make_groups(pack_inputs(function, packings)) if group.step is not None]
    plans = [make_plan(stage, frozenset(), {}, machine) for group in groups for stage in group.stages]
    assert all(plan.vector is not None and plan.lanes == 16 for plan in plans)
    assert sum(bool(plan.reduce) for plan in plans) == 1


def test_a_loop_is_one_kernel() -> None:
    module = compile_one(lowered("nn.lstm", operands("nn.lstm", 400, 1, 8)))
    assert len(module.symbols()) == 1
    assert len(module.save_to_bytes()) < 20_000


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [(7, 1, 300), (4, 3, 17), (3, 16, 96)], ids=str)
def test_layers_with_bytes_as_weights(sizes: tuple[int, int, int], threads: int) -> None:
    op = get_op("nn.dynamic_quantize_lstm")
    assert op.reference is not None
    steps, batch, hidden = sizes
    rng, columns, depth = np.random.default_rng(hidden), 4 * hidden, -(-hidden // 4)
    stored = np.zeros((4 * depth, columns), np.int8)
    stored[:hidden] = rng.integers(-128, 128, (hidden, columns))
    words = np.ascontiguousarray(np.moveaxis(stored.reshape(depth, 4, columns), 1, 2)).view(np.int32)[..., 0]
    zero = np.full(columns, 9, np.int32)
    arrays = [
        rng.standard_normal((steps, batch, columns)).astype(np.float32),
        words,
        (rng.uniform(0.5, 1, columns) / (64 * np.sqrt(hidden))).astype(np.float32),
        zero,
        stored.sum(0, dtype=np.int32) - hidden * zero,
        *(rng.standard_normal((2, batch, hidden)) / 2).astype(np.float32),
    ]
    found = run_module(compile_one(lowered(op.name, arrays)), "kernel", arrays, {}, threads)
    for result, right in zip(found, op.reference(*arrays, **op.check_attributes({})), strict=True):
        # A state that lies between two of 256 numbers may be rounded to either.
        np.testing.assert_allclose(result, right, atol=2e-3)


def test_products_of_bytes_are_packed_and_tiled() -> None:
    machine = Machine("x86_64", (*features_of_level("x86-64-v4"), "avx512vnni"))
    types = [((3, 1, 512), "float32"), ((32, 512), "int32"), ((512,), "float32"), ((512,), "int32"), ((512,), "int32")]
    op = get_op("nn.dynamic_quantize_lstm")
    operand_types = [TensorType(*each) for each in (*types, *2 * [((1, 128), "float32")])]
    attrs = op.check_attributes({})
    function = legalize.legalize_call(op.name, operand_types, attrs, op.infer_type(operand_types, attrs))
    packings = choose_packings(function, [1, 2, 3, 4], machine)
    assert list(packings) == [1]
    text = write_module({"kernel": pack_inputs(function, packings)}, machine)[1]
    assert "vpdpbusd.512" in text
