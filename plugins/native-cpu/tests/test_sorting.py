"""Kernels that sort: against the interpreter, whole rows and a few of many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dims, dtypes
from kernelyard.ir import TensorType
from kernelyard.tir import PrimFunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import Axis, Expr, unary
from kernelyard.tir.interpreter import evaluate
from kernelyard.tir.visitor import rename_buffers
from kernelyard_native_cpu.codegen import vector_sort
from kernelyard_native_cpu.codegen.radix_sort import LEAST_PARTED, MOST_RANKED
from kernelyard_native_cpu.machine import resolve_machine
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.plan import Sort
from kernelyard_native_cpu.schedule.rules import make_plan

from .conftest import compile_all, compile_one, run_module

N, K = dims.symbol("n"), dims.symbol("k")
MACHINES = (None, "x86-64-v2", "x86-64-v3")
SIZES = (1, 7, MOST_RANKED, MOST_RANKED + 1, 1000)
COUNTS = (0, 1, 5, 300)  # of 5,003


def argsort(
    shape: tuple[dims.Dim, ...], axis: int, count: dims.Dim, dtype: str = "float32", *, descending: bool = False
) -> PrimFunc:
    """The first places along an axis, and the values there."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType(shape, dtype))
    result = (*shape[:axis], count, *shape[axis + 1 :])

    def along(at: tuple[Axis, ...], place: Expr) -> tuple[Expr, ...]:
        return (*at[:axis], place, *at[axis + 1 :])

    reducer = "argsort_descending" if descending else "argsort"
    body = lambda at, p: x[along(at, p[0])]  # noqa: E731
    places = b.reduce(reducer, result, (shape[axis],), body, arg=lambda at, _: at[axis])
    values = b.compute(result, lambda *at: x[along(at, places[at])])
    return b.finish((values, places))


def values_alone(
    shape: tuple[dims.Dim, dims.Dim], count: dims.Dim, dtype: str = "float32", *, descending: bool = False
) -> PrimFunc:
    """The first values of each row in order."""
    both = argsort(shape, 1, count, dtype, descending=descending)
    inside = {both.outputs[1]: replace(both.outputs[1], scope="local")}
    blocks = tuple(rename_buffers(block, inside) for block in both.blocks)
    return PrimFunc(both.params[:-1], blocks, 1, tuple(inside.values()))


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0, special: bool = True) -> np.ndarray:
    """Numbers with many ties; of floats, with NaN, infinities and both zeros."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if not dtypes.is_float(dtype):
        limits = np.iinfo(dtypes.to_numpy(dtype))
        found = rng.integers(limits.min, limits.max, shape, dtype=dtypes.to_numpy(dtype), endpoint=True)
        return np.where(rng.random(shape) < 0.3, found, found % np.array(7, found.dtype))
    found = rng.standard_normal(shape)
    if special:
        chosen = rng.integers(0, 40, shape)
        for code, value in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, -np.nan)):
            found = np.where(chosen == code, value, found)
    return found.astype(dtypes.to_numpy(dtype))


class Sorts:
    """Functions that sort, in one module: what they share, which is most of them, is compiled once."""

    def __init__(self, functions: Mapping[str, PrimFunc], mcpu: str | None = None) -> None:
        self._functions = functions
        self._module = compile_all(functions, mcpu)

    def check(self, name: str, x: np.ndarray, symbols: dict[str, int] | None = None, threads: int = 1) -> None:
        """Assert that a kernel gives what the interpreter gives."""
        found = run_module(self._module, name, [x], symbols, threads)
        for actual, wanted in zip(found, evaluate(self._functions[name], [x], symbols or {}), strict=True):
            np.testing.assert_array_equal(actual.astype(np.float64), wanted.astype(np.float64))


def assert_sorted(function: PrimFunc, x: np.ndarray, symbols=None, threads: int = 1, mcpu: str | None = None) -> None:
    Sorts({"kernel": function}, mcpu).check("kernel", x, symbols, threads)


@cache
def whole_rows(dtype: str) -> Sorts:
    return Sorts(
        {
            f"{size}_{descending}": argsort((3, size), 1, size, dtype, descending=descending)
            for size in SIZES
            for descending in (False, True)
        }
    )


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_whole_rows(dtype, descending, size):
    whole_rows(dtype).check(f"{size}_{descending}", numbers((3, size), dtype))


@pytest.mark.parametrize("mcpu", MACHINES)
@pytest.mark.parametrize("dtype", dtypes.DTYPES)
def test_values_alone(mcpu, dtype):
    functions = {
        f"{size}_{descending}": values_alone((2, size), size, dtype, descending=descending)
        for size in (1, 17, 2000)
        for descending in (False, True)
    }
    sorts = Sorts({**functions, "few": values_alone((2, 5003), 9, dtype, descending=True)}, mcpu)
    for name in functions:
        sorts.check(name, numbers((2, int(name.partition("_")[0])), dtype))
    sorts.check("few", numbers((2, 5003), dtype))


@pytest.mark.parametrize("steps_per_bit", [0, vector_sort.STEPS_PER_BIT])
@pytest.mark.parametrize("mcpu", [None, "x86-64-v3"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_vectors_divide_any_row(monkeypatch, dtype, mcpu, steps_per_bit):
    """Without steps to spare, parts are divided in the middle of their range."""
    monkeypatch.setattr(vector_sort, "STEPS_PER_BIT", steps_per_bit)
    module = compile_one(values_alone((1, N), N, dtype), mcpu)
    rng = np.random.default_rng(0)
    for size in (200, 1000, 20011):
        rising = np.arange(size)
        rows = {
            "random": rng.standard_normal(size) * 1e4,
            "rising": rising,
            "falling": -rising,
            "organ pipes": np.minimum(rising, size - rising),
            "two values": rising % 2,
            "equal": np.full(size, 7),
            "powers": 1.5 ** (rising % 43),
            "one is great": np.where(rising == size // 2, 1e9, 0),
        }
        for name, row in rows.items():
            x = row.astype(dtype)[None]
            (found,) = run_module(module, "kernel", [x], {"n": size})
            np.testing.assert_array_equal(found, np.sort(x), err_msg=f"{name}, {size}")


def test_values_alone_keep_their_bits():
    """Both zeros, and nothing but NaN loses its sign."""
    x = np.array([[0.0, -0.0, 1.0, -0.0, np.inf, -np.nan, -1.0]], np.float32)
    (found,) = run_module(compile_one(values_alone((1, 7), 7, "float32")), "kernel", [x])
    assert sorted(np.signbit(found[0, :-1]).tolist()) == [False] * 3 + [True] * 3
    assert np.isnan(found[0, -1])


def test_values_are_sorted_alone_where_nothing_else_is_asked():
    def sort_of(function: PrimFunc) -> Sort:
        (group,) = make_groups(function)
        found = make_plan(group.stages[0], frozenset(), {}, resolve_machine("x86-64-v3")).sort
        assert found is not None
        return found

    assert sort_of(values_alone((1, 9), 9)).value is not None
    assert sort_of(argsort((1, 9), 1, 9)).value is None


@pytest.mark.parametrize("kind", ["random", "one part", "equal", "wide"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "float64"])
def test_rows_that_are_sorted_in_parts(dtype, kind):
    size = LEAST_PARTED + 1001
    x = numbers((1, size), dtype)
    if kind == "one part":
        x = np.concatenate([np.arange(size - 1) % 1000, [1e9]]).reshape(1, -1).astype(dtype)
    elif kind == "equal":
        x = np.full_like(x, 3)
    elif kind == "wide":
        x = (np.arange(size)[None, ::-1] * 7919).astype(dtype)
    assert_sorted(argsort((1, size), 1, size, dtype), x)


@cache
def few_of_many(dtype: str) -> Sorts:
    return Sorts({f"first_{count}": argsort((2, 5003), 1, count, dtype, descending=True) for count in COUNTS})


@pytest.mark.parametrize("dtype", dtypes.DTYPES)
@pytest.mark.parametrize("count", COUNTS)
def test_a_few_of_many(dtype, count):
    few_of_many(dtype).check(f"first_{count}", numbers((2, 5003), dtype))


@pytest.mark.parametrize("mcpu", MACHINES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8"])
def test_machines(mcpu, dtype):
    sorts = Sorts({"few": argsort((2, 1003), 1, 9, dtype), "all": argsort((2, 203), 1, 203, dtype)}, mcpu)
    sorts.check("few", numbers((2, 1003), dtype))
    sorts.check("all", numbers((2, 203), dtype))


@pytest.mark.parametrize("order", ["ascending", "descending", "equal"])
@pytest.mark.parametrize("descending", [False, True])
def test_orders_that_fill_the_buffer_again_and_again(order, descending):
    x = np.sort(numbers((1, 20000), "float32", special=False))
    x = {"ascending": x, "descending": x[:, ::-1].copy(), "equal": np.ones_like(x)}[order]
    assert_sorted(argsort((1, 20000), 1, 7, descending=descending), x)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("count", [2, 9])
def test_axes(axis, count):
    x = numbers((9, 300, 11)[-axis:] + (9, 300, 11)[:-axis], "float32")
    assert_sorted(argsort(x.shape, axis, min(count, x.shape[axis])), x)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_have_memory_of_their_own(threads):
    assert_sorted(argsort((64, 4000), 1, 4000), numbers((64, 4000), "float32"), threads=threads)


@cache
def sorts_of_any_size(dtype: str) -> Sorts:
    shapes: list[tuple[dims.Dim, ...]] = [(N, dims.symbol("m")), (dims.symbol("m"), N)]
    return Sorts(
        {
            f"{axis}_{descending}": argsort(shape, axis, K, dtype, descending=descending)
            for axis, shape in enumerate(shapes)
            for descending in (False, True)
        }
    )


@given(st.data())
@settings(max_examples=150)
def test_symbolic_sizes(data):
    dtype = data.draw(st.sampled_from(dtypes.DTYPES))
    descending, axis = data.draw(st.booleans()), data.draw(st.integers(0, 1))
    size = data.draw(st.integers(0, 400))
    count = data.draw(st.integers(0, size))
    x = numbers((size, 3) if axis == 0 else (3, size), dtype, data.draw(st.integers(0, 99)))
    sorts_of_any_size(dtype).check(f"{axis}_{descending}", x, {"n": size, "m": 3, "k": count})


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_that_are_made_sorted_and_read_in_one_loop(threads):
    """Each thread keeps the records of one sorted row."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((96, 300), "float32"))
    largest = b.reduce("max", (96,), (300,), lambda at, p: x[at[0], p[0]])
    powers = b.compute((96, 300), lambda i, j: unary("exp", x[i, j] - largest[i]) + unary("sin", x[i, j]))
    places = b.reduce("argsort_descending", (96, 4), (300,), lambda at, p: powers[at[0], p[0]], arg=lambda at, _: at[1])
    values = b.compute((96, 4), lambda i, j: powers[i, places[i, j]])
    function = b.finish((places, values))
    assert len(make_groups(function)) < len(function.blocks)
    x = numbers((96, 300), "float32", special=False)
    found = run_module(compile_one(function), "kernel", [x], threads=threads)
    for actual, wanted in zip(found, evaluate(function, [x]), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5)


def test_one_position_of_each_row():
    """The median: no axis counts positions."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((5, N), "float32"))
    middle = b.reduce("argsort", (5,), (N,), lambda at, p: x[at[0], p[0]], arg=lambda at, _: at[0] * 0 + 50)
    assert_sorted(b.finish((middle,)), numbers((5, 101), "float32"), {"n": 101})


def test_what_is_sorted_may_be_computed():
    b = PrimFuncBuilder()
    x, y = (b.input(name, TensorType((4, 500), "float16")) for name in "xy")
    places = b.reduce(
        "argsort_descending",
        (4, 3),
        (500,),
        lambda at, p: x[at[0], p[0]] * y[3 - at[0], p[0]],
        arg=lambda at, _: at[1],
    )
    function = b.finish((b.compute((4, 3), lambda i, j: places[i, j] * 2),))
    inputs = [numbers((4, 500), "float16", seed) for seed in range(2)]
    (found,) = run_module(compile_one(function), "kernel", inputs)
    np.testing.assert_array_equal(found, evaluate(function, inputs)[0])
