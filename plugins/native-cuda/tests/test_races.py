"""Races on tensors that the emulator stops where it records accesses, and the orders in which it runs blocks."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.errors import ExecutionError
from kernelyard.runtime.device.driver import DeviceMemory
from kernelyard_cuda.driver_api import Argument, Grid, Image
from kernelyard_native_cuda.drivers.emulator import RACES_VARIABLE, Checks, Emulator
from kernelyard_native_cuda.generator import GENERATED

from .conftest import generate, run_on
from .test_emulator import run_text
from .test_mutants import mutated
from .test_rules import N, f32, lower, random

LAST_FIRST, SEED = 1, 7


@pytest.fixture
def recording(emulator, monkeypatch) -> Emulator:
    monkeypatch.setattr(emulator, "checks", Checks(tensors=True))
    return emulator


# A kernel's body, its blocks of 64 threads, and what is said of it.
RACES = {
    "threads add to an element without an atomic": (
        "if (threadIdx.x == 0) out[0] = 0; __syncthreads(); out[0] = out[0] + 1.0f;",
        1,
        "a race on element 0 of 128 of tensor out: read by thread (1, 0, 0) of block (0, 0, 0), "
        "written by thread (0, 0, 0) of block (0, 0, 0), with no barrier between them",
    ),
    "a neighbour's element is read with no barrier": (
        "out[threadIdx.x] = threadIdx.x; if (threadIdx.x) out[64 + threadIdx.x] = out[threadIdx.x - 1];",
        1,
        "a race on element 0 of 128 of tensor out: read by thread (1, 0, 0)",
    ),
    "a block reads what another wrote": (
        "out[blockIdx.x * 64 + threadIdx.x] = blockIdx.x ? out[threadIdx.x] + 1.0f : 5.0f;",
        2,
        "a race on element 0 of 128 of tensor out: read by thread (0, 0, 0) of block (1, 0, 0), "
        "written by thread (0, 0, 0) of block (0, 0, 0)",
    ),
    "blocks add up without an atomic": (
        "if (threadIdx.x == 5) out[3] = 1.0f;",
        2,
        "a race on element 3 of 128 of tensor out: written by thread (5, 0, 0) of block (1, 0, 0), "
        "written by thread (5, 0, 0) of block (0, 0, 0)",
    ),
    "an element is written that others have read": (
        "const float v = out[5]; __syncthreads(); if (threadIdx.x == 1 && blockIdx.x == 2) out[5] = v;",
        3,
        "a race on element 5 of 128 of tensor out: written by thread (1, 0, 0) of block (2, 0, 0), read by thread",
    ),
}


@pytest.mark.parametrize("name", RACES)
def test_races_are_stopped_and_named(recording, name):
    body, blocks, words = RACES[name]
    with pytest.raises(ExecutionError) as caught:
        run_text(recording, body, elements=128, blocks=blocks)
    assert words in str(caught.value)


def test_races_are_not_looked_for_unless_asked(emulator):
    body, blocks, _ = RACES["blocks add up without an atomic"]
    run_text(emulator, body, elements=128, blocks=blocks)


def test_what_a_barrier_orders_is_no_race(recording):
    body = "out[threadIdx.x] = threadIdx.x; __syncthreads(); out[64 + threadIdx.x] = out[63 - threadIdx.x];"
    expected = np.concatenate([np.arange(64), np.arange(63, -1, -1)])
    np.testing.assert_array_equal(run_text(recording, body, elements=128), expected)


def test_what_all_read_and_one_writes_behind_a_barrier_is_no_race(recording):
    found = run_text(recording, "const float v = out[5]; __syncthreads(); if (threadIdx.x == 1) out[5] = v + 2;")
    assert found[5] == 1


def test_each_launch_is_for_itself(recording):
    """Launches are in order: what one wrote, any thread of the next may write."""
    for _ in range(2):
        run_text(recording, "out[blockIdx.x * 64 + threadIdx.x] = 1;", elements=128, blocks=2)


@pytest.mark.parametrize(("offset", "stops"), [(0, True), (60, True), (64, False)])
def test_an_output_that_lies_where_an_input_does_is_stopped(recording, offset, stops):
    head = 'extern "C" __global__ void kernel(GLOBAL(const float) x, const long long n, GLOBAL(float) y)'
    image = Image(f"{head} {{ y[threadIdx.x] = x[threadIdx.x]; }}", ("kernel",), {})
    held = DeviceMemory(recording, 4 * 128)
    recording.upload(held.address, np.ones(128, np.float32))
    arguments = [Argument(held.address, 256), Argument(held.address), Argument(held.address + 4 * offset, 256)]
    launch = recording.load(image).prepare("kernel", Grid((1, 1, 1), (64, 1, 1)), arguments)
    if not stops:
        launch()
        return
    with pytest.raises(ExecutionError, match="tensors y and x overlap"):
        launch()


def test_the_variable_asks_for_it_everywhere(monkeypatch):
    assert not Emulator(("g++",)).checks.tensors
    monkeypatch.setenv(RACES_VARIABLE, "1")
    assert Emulator(("g++",)).checks.tensors


SOFTMAX = (lower("nn.softmax", f32(3, N), axis=1), random(3, 70), {"n": 70})
SUM = (lower("sum", f32(3, 200), axes=(1,)), random(3, 200), {})


@pytest.mark.parametrize(
    ("case", "old", "number", "new"),
    [
        (SOFTMAX, "long long edge = threadIdx.x;", 3, "long long edge = threadIdx.x / 2;"),
        (SUM, "if (threadIdx.x == 0)", 1, ""),
    ],
    ids=["an element that two write", "a result that all write"],
)
def test_mutants_that_give_the_right_numbers_are_found(recording, monkeypatch, case, old, number, new):
    """Threads that write the same value twice: no number shows it."""
    function, x, sizes = case
    module = generate({"kernel": function})
    changed = mutated(module, old, number, new, GENERATED)
    run_on(recording, module, "kernel", [x], sizes)
    with pytest.raises(ExecutionError, match="a race on element"):
        run_on(recording, changed, "kernel", [x], sizes)
    monkeypatch.setattr(recording, "checks", Checks())
    wanted = run_on(recording, module, "kernel", [x], sizes)
    np.testing.assert_array_equal(run_on(recording, changed, "kernel", [x], sizes), wanted)


# --- orders of blocks -------------------------------------------------------------------------------------------------
TURNS = "out[blockIdx.x] = atomicAdd(&out[gridDim.x], 1.0f);"  # who came when


@pytest.mark.parametrize("order", [0, LAST_FIRST, SEED])
def test_blocks_run_in_the_order_that_is_asked_for(emulator, monkeypatch, order):
    monkeypatch.setattr(emulator, "checks", Checks(order=order))
    turns = run_text(emulator, TURNS, elements=41, threads=1, blocks=40)[:40] + 1
    np.testing.assert_array_equal(np.sort(turns), np.arange(40))
    is_in_order, is_reversed = (turns == np.arange(40)).all(), (turns == np.arange(39, -1, -1)).all()
    assert (is_in_order, is_reversed) == (order == 0, order == LAST_FIRST)
    np.testing.assert_array_equal(run_text(emulator, TURNS, elements=41, threads=1, blocks=40)[:40] + 1, turns)
