"""Constants kept in the order in which kernels read them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from kernelyard.ir import Call, Constant, FunctionBuilder, IRModule, parse_module, to_text, verify
from kernelyard.runtime.abi.memory import ALIGNMENT
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.tir.packing import Packing
from kernelyard.tir.padding import paddable_axis
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.layout.pack_constants import PackConstants
from kernelyard.transform.pipelines import get_pipeline

WEIGHT = np.arange(48, dtype=np.float32).reshape(6, 8)


def products(*weights: np.ndarray) -> IRModule:
    """One product after the other: x (n, 6) with each weight."""
    b = FunctionBuilder()
    x = b.input("x", (4, 6))
    results = [b.op("matmul", x, weight) for weight in weights]
    total = results[0]
    for result in results[1:]:
        total = b.op("add", total, result)
    return get_pipeline("legalize")(IRModule({"main": b.function(total)}))


def calls(module: IRModule) -> list[Call]:
    return [binding.value for binding in module["main"].bindings if isinstance(binding.value, Call)]


def constants(call: Call) -> list[Constant]:
    return [arg for arg in call.args if isinstance(arg, Constant)]


@pytest.mark.parametrize("packing", [Packing(0, 2), Packing(0, 6), Packing(1, 4), Packing(1, 1)])
def test_the_meaning_stays(packing):
    module = products(WEIGHT)
    packed = verify(PackConstants(lambda function, positions: dict.fromkeys(positions, packing))(module))
    (weight,) = constants(calls(packed)[0])
    assert weight.data.shape == packing.shape((6, 8))
    assert weight.data.ctypes.data % ALIGNMENT == 0  # programs read it in place
    assert_same_meaning(module, packed, [np.ones((4, 6), np.float32)])
    assert to_text(parse_module(to_text(packed))) == to_text(packed)
    assert sum(isinstance(f, PrimFunc) for f in packed.functions.values()) == 1, "the old function is gone"


@pytest.mark.parametrize("packing", [Packing(1, 3), Packing(1, 16)])
@pytest.mark.parametrize("follows", [(), ("nn.relu",), ("exp", "nn.gelu")])
def test_the_last_block_is_filled_up(packing, follows):
    b = FunctionBuilder()
    y = b.op("matmul", b.input("x", (4, 6)), WEIGHT)
    for op in follows:
        y = b.op(op, y)
    module = get_pipeline("legalize")(IRModule({"main": b.function(y)}))
    packed = verify(PackConstants(lambda function, positions: dict.fromkeys(positions, packing))(module))
    (weight,) = constants(calls(packed)[0])
    assert weight.data.shape == (-(-8 // packing.block), 6, packing.block)
    assert weight.data.sum() == WEIGHT.sum()
    assert_same_meaning(module, packed, [np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)])


def test_axes_that_are_read_elsewhere_are_not_padded():
    b = FunctionBuilder()
    x, y = b.input("x", (4, 6)), b.input("y", (6, 8))
    module = get_pipeline("legalize")(IRModule({"main": b.function(b.op("matmul", x, y))}))
    (function,) = (f for f in module.functions.values() if isinstance(f, PrimFunc))
    columns, rows = paddable_axis(function, function.inputs[1], 1), paddable_axis(function, function.inputs[0], 0)
    assert (columns.extent, rows.extent) == (8, 4)
    assert paddable_axis(function, function.inputs[1], 0) is None, "the sum is over it"
    assert paddable_axis(function, function.inputs[0], 1) is None


def test_only_constants_are_asked_about():
    asked: list[tuple[int, ...]] = []

    def choose(function: PrimFunc, positions) -> dict[int, Packing]:
        asked.append(tuple(positions))
        return {}

    module = products(WEIGHT)
    assert PackConstants(choose)(module) is module
    assert asked == [(1,)]


def test_the_name_tells():
    module = products(WEIGHT, WEIGHT * 2)
    packed = PackConstants(lambda function, positions: dict.fromkeys(positions, Packing(1, 4)))(module)
    assert_same_meaning(module, packed, [np.ones((4, 6), np.float32)])
    assert [call.args[0].name for call in calls(packed)] == [f"{call.args[0].name}_packed" for call in calls(module)]


@pytest.mark.parametrize(
    ("shape", "packing"),
    [((6, 8), Packing(1, 4)), ((4, 3, 2, 5), Packing(0, 2)), ((7,), Packing(0, 7)), ((3, 7), Packing(1, 4))],
)
def test_every_element_is_where_its_index_says(shape, packing):
    data = np.arange(np.prod(shape)).reshape(shape)
    packed = packing.apply(data)
    assert packed.shape == packing.shape(shape)
    for at in np.ndindex(*shape):
        place = at[packing.axis]
        rest = at[: packing.axis] + at[packing.axis + 1 :]
        assert packed[(place // packing.block, *rest, place % packing.block)] == data[at]


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("block", [16, 24])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_packing_needs_no_memory_beside_the_result(axis, block, is_transposed):
    """A vocabulary, which blocks seldom divide, is the largest weight of a language model."""
    data = np.arange(64**3, dtype=np.float32).reshape(64, 64, 64)
    data = data.T if is_transposed else data
    tracemalloc.start()
    try:
        packed = Packing(axis, block).apply(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * packed.nbytes
    padded = np.pad(data, [(0, -64 % block if each == axis else 0) for each in range(3)])
    np.testing.assert_array_equal(np.moveaxis(packed, -1, 1).reshape(-1, 64, 64), np.moveaxis(padded, axis, 0))


@pytest.mark.parametrize(("shape", "stored"), [((6, 8), 1), ((6, 9), 2)])
def test_functions_share_a_packed_constant(shape, stored):
    """One block for both, where it divides the axis."""
    weight = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    b = FunctionBuilder()
    few, many = b.input("few", (1, 6)), b.input("many", (4, 6))
    module = b.function(b.op("matmul", many, weight), b.op("matmul", few, weight.copy()))
    legal = get_pipeline("legalize")(IRModule({"main": module}))
    blocks = {4: 4, 1: 2}
    packed = verify(PackConstants(lambda f, at: {n: Packing(1, blocks[f.outputs[0].shape[0]]) for n in at})(legal))
    assert len({constants(call)[0].digest for call in calls(packed)}) == stored
    assert_same_meaning(legal, packed, [np.ones((1, 6), np.float32), np.ones((4, 6), np.float32)])
