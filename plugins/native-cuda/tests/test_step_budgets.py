"""Steps of kernels that sort, select, scan and find extrema: for each element, within a budget that does not grow.

A step is a piece of code without branches that a thread of a kernel runs: g++ and clang call a function at the start of
each. Steps of the emulator's scheduler are not counted; those of its checks, a few for each access, are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from kernelyard import dims
from kernelyard.errors import DeviceError
from kernelyard.ir import TensorType
from kernelyard.tir import PrimFunc
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.expr import INDEX, cast
from kernelyard_native_cuda.drivers import EMULATOR, open_device
from kernelyard_native_cuda.drivers.emulator import CPP, EmulatedKernels, Emulator
from kernelyard_native_cuda.generator import GENERATED
from kernelyard_native_cuda.runtime import NativeCudaModule
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE
from kernelyard_native_cuda.schedule.rules import schedule
from kernelyard_native_cuda.schedule.sort import LEAST_BY_DIGITS, TILE

from .conftest import generate, run_on
from .test_mutants import mutated
from .test_rules import lower
from .test_sorting import argsort

N, ROWS = dims.symbol("n"), dims.symbol("rows")
COUNTER = """
#ifdef __clang__
#define NOT_COUNTED __attribute__((no_sanitize("coverage")))
#else
#define NOT_COUNTED __attribute__((no_sanitize_coverage))
#endif
static unsigned long long steps;
static bool votes[emulation::MOST_THREADS];
// Threads have stacks of their own, so that what the scheduler does is known by its place.
extern "C" NOT_COUNTED void __sanitizer_cov_trace_pc() {
  const char* at = (const char*)__builtin_frame_address(0);
  const size_t all = emulation::STACK * emulation::MOST_THREADS;
  const bool is_of_a_thread = at >= emulation::stacks && at < emulation::stacks + all;
  if (is_of_a_thread && !votes[emulation::current - emulation::threads]) ++steps;
}
EXPORTED NOT_COUNTED unsigned long long steps_so_far() { return steps; }
// One step, as on GPUs: the emulator asks each lane.
static unsigned vote(unsigned mask, int predicate) {
  bool& here = votes[emulation::current - emulation::threads];
  here = true;
  const unsigned lanes = __ballot_sync(mask, predicate);
  here = false;
  return lanes;
}
#define __ballot_sync vote
"""


@pytest.fixture(scope="module")
def counting() -> Emulator:
    """An emulator whose code counts its steps."""
    try:
        open_device(EMULATOR)
    except DeviceError as error:
        pytest.skip(f"{error.found}; {error.hint}")
    return Emulator((*CPP.find(), "-fsanitize-coverage=trace-pc"))


def op(name: str, **attributes: object) -> PrimFunc:
    return lower(name, TensorType((ROWS, N), "float32"), **attributes)


def in_order(count: int | None) -> Callable[[np.ndarray], list[np.ndarray]]:
    def first(x: np.ndarray) -> list[np.ndarray]:
        order = np.argsort(x, 1, kind="stable")[:, :count]
        return [np.take_along_axis(x, order, 1), order]

    return first


class Case(NamedTuple):
    """A function and what it may cost.

    by_numpy: what it gives. helper: the function of the device that does the work of the kernels that run. budgets:
    steps for each element, a sixth more than were counted, by the numbers of rows and of elements in each.
    """

    function: PrimFunc
    by_numpy: Callable[[np.ndarray], list[np.ndarray]]
    helper: str
    budgets: dict[tuple[int, int], int]


def rows_of_one(*budgets: int) -> dict[tuple[int, int], int]:
    sizes = (1_000, 2_000, 10_000, 20_000, 50_000, 100_000)
    return {(1, size): budget for size, budget in zip(sizes, budgets, strict=True)}


CASES = {
    "bitonic": Case(
        argsort((ROWS, 1_000), 1, 1_000),
        in_order(1_000),
        "sort_tile<",
        {(1, 1_000): 1_500, (10, 1_000): 1_500, (100, 1_000): 1_500},
    ),
    "merge": Case(
        argsort((ROWS, N), 1, N),
        in_order(None),
        "merged_runs<",
        {(1, 1_000): 1_500, (1, 2_000): 1_600, (1, 4_000): 1_700, (1, 8_000): 1_800, (1, 16_000): 1_900},
    ),
    "radix": Case(
        argsort((ROWS, N), 1, N),
        in_order(None),
        "move_tile<",
        {(1, LEAST_BY_DIGITS): 4_300, (1, 50_000): 2_100, (1, 100_000): 1_500},
    ),
    "selection": Case(
        argsort((ROWS, N), 1, 50), in_order(50), "merged_runs<", rows_of_one(1_500, 1_500, 1_500, 1_500, 1_500, 1_500)
    ),
    "selection of a tile": Case(
        argsort((ROWS, N), 1, TILE),
        in_order(TILE),
        "merged_runs<",
        {(1, 2_000): 1_600, (1, 10_000): 1_700, (1, 50_000): 1_700, (1, 100_000): 1_700},
    ),
    "scan": Case(
        op("cumsum", axis=1),
        lambda x: [np.cumsum(x, 1, dtype=np.float64)],
        "total_before_tile<",
        rows_of_one(250, 130, 130, 130, 130, 130),
    ),
    "argmax": Case(
        op("argmax", axis=1), lambda x: [x.argmax(1)], "place_of_first<", rows_of_one(29, 21, 16, 15, 15, 15)
    ),
}


def with_counter(function: PrimFunc) -> NativeCudaModule:
    module = generate({"kernel": function})
    module.image = replace(module.image, source=COUNTER + module.image.source)
    return module


def symbols_of(function: PrimFunc, rows: int, size: int) -> dict[str, int]:
    return {name: {"n": size, "rows": rows}[name] for name in function.symbols}


def text_that_runs(function: PrimFunc, rows: int, size: int) -> str:
    """The code of the kernels that are started with any blocks."""
    symbols = symbols_of(function, rows, size)
    kernels = schedule(function, "f", ANY_MACHINE).kernels
    return "\n".join(kernel.text for kernel in kernels if dims.evaluate(kernel.blocks[0], symbols))


def steps_of(counting: Emulator, module: NativeCudaModule, case: Case, rows: int, size: int) -> int:
    """The steps of all threads; what they find is right."""
    x = np.random.default_rng(size).standard_normal((rows, size)).astype(np.float32)
    kernels = module._load(counting)
    assert isinstance(kernels, EmulatedKernels)
    steps_so_far = kernels._library.steps_so_far
    steps_so_far.restype = ctypes.c_ulonglong
    before = steps_so_far()
    found = run_on(counting, module, "kernel", [x], symbols_of(case.function, rows, size))
    steps = steps_so_far() - before
    for actual, wanted in zip(found, case.by_numpy(x), strict=True):
        np.testing.assert_allclose(actual.reshape(wanted.shape), wanted, rtol=1e-3, atol=1e-2)
    return steps


def grows_too_fast(steps: dict[int, int]) -> bool:
    """Tell if twice the elements, or more, take a tenth more steps for each, or more than that. steps: by elements."""
    each = [steps[size] / size for size in sorted(steps)]
    return any(more > 1.1 * less for less, more in pairwise(each))


@pytest.mark.parametrize("name", CASES)
def test_steps_for_each_element_are_within_a_budget(counting, name):
    case = CASES[name]
    assert [at for at in case.budgets if case.helper not in text_that_runs(case.function, *at)] == []
    module = with_counter(case.function)
    steps = {at: steps_of(counting, module, case, *at) for at in case.budgets}
    each = {(rows, size): round(count / (rows * size)) for (rows, size), count in steps.items()}
    assert {at: count for at, count in each.items() if count > case.budgets[at]} == {}
    assert not grows_too_fast({rows * size: count for (rows, size), count in steps.items()})


def test_ranks_by_counting_are_seen(counting):
    """An order found by comparing each element with all others."""
    b = PrimFuncBuilder()
    x = b.input("x", TensorType((ROWS, N), "float32"))
    ranks = b.reduce("sum", (ROWS, N), (N,), lambda at, p: cast(x[at[0], p[0]] < x[at[0], at[1]], INDEX))
    case = Case(b.finish((ranks,)), lambda x: [x.argsort(1).argsort(1)], "", {})
    module = with_counter(case.function)
    assert grows_too_fast({size: steps_of(counting, module, case, 1, size) for size in (1_000, 2_000)})


def test_a_kernel_that_does_its_work_twice_is_over_its_budget(counting):
    case = CASES["selection"]
    module = with_counter(case.function)
    worse = mutated(module, "sort_tile<", 1, "sort_tile<1024, 256>(keys, places);sort_tile<", GENERATED)
    assert steps_of(counting, worse, case, 1, 1_000) > 1_000 * case.budgets[1, 1_000]
