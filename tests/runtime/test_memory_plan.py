"""The memory plan: buffers that live together never overlap, and the arena is as small as what lives at one time."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard import dims
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.memory import ALIGNMENT
from kernelyard.runtime.abi.spec import TensorSpec
from kernelyard.runtime.program import memory_plan
from kernelyard.runtime.program.execution_plan import ExecutionPlan, ProgramMemory, spans_of
from kernelyard.runtime.program.memory_plan import Lifetime, MemoryPlanner, least_nbytes, plan_memory
from kernelyard.runtime.program.program import Program, Register, Step

N = dims.symbol("n")
MANY = 1 << 16  # so many bytes that it is worth some time to save a few of them

lifetimes = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 1000),
    st.integers(0, 12),
    st.integers(0, 6),
)


@given(st.lists(lifetimes, max_size=30))
def test_living_buffers_do_not_overlap(buffers):
    plan = plan_memory(buffers)
    for i, (a, start) in enumerate(zip(buffers, plan.offsets, strict=True)):
        assert start % ALIGNMENT == 0
        assert start + a.nbytes <= plan.nbytes
        for b, other in list(zip(buffers, plan.offsets, strict=True))[:i]:
            if a.overlaps(b) and a.nbytes and b.nbytes:
                assert start + a.nbytes <= other or other + b.nbytes <= start


@given(st.lists(lifetimes, max_size=30))
def test_no_more_than_separate_buffers_are_needed(buffers):
    assert plan_memory(buffers).nbytes <= sum(memory.align(buffer.nbytes) for buffer in buffers)


def test_a_chain_needs_two_buffers():
    chain = [Lifetime(1000, time, time + 1) for time in range(50)]
    assert plan_memory(chain).nbytes == 2 * 1024


def test_the_tightest_gap_is_taken():
    # 640 bytes end first; at time 5 the gaps are 640 bytes, then 128 between two that live on
    living = [Lifetime(640, 0, 0), Lifetime(320, 0, 9), Lifetime(256, 0, 0), Lifetime(192, 0, 9)]
    plan = plan_memory([*living, Lifetime(192, 5, 5), Lifetime(64, 5, 5)])
    assert plan.offsets[:4] == (0, 640, 960, 1216)
    assert plan.offsets[4] == 960
    assert plan.offsets[5] == 960 + 192


def test_the_same_lifetimes_give_the_same_plan():
    chance = random.Random(3)
    buffers = [Lifetime(chance.randint(1, 5000), first, first + chance.randint(0, 20)) for first in range(80)]
    assert plan_memory(buffers) == plan_memory(list(buffers))


def test_the_bound_counts_what_lives_at_one_time():
    assert least_nbytes([]) == 0
    assert least_nbytes([Lifetime(1, 0, 3), Lifetime(65, 3, 3), Lifetime(64, 4, 9)]) == 64 + 128
    assert least_nbytes([Lifetime(64, 0, 0), Lifetime(64, 1, 1), Lifetime(64, -1, 5)]) == 128


# --- one set of sizes after the other --------------------------------------------------------------------------------
def random_lifetimes(chance: random.Random, scale: int) -> list[Lifetime]:
    """Forty buffers; no order of sizes or durations alone makes an arena of most such sets small."""
    firsts = [chance.randint(0, 40) for _ in range(40)]
    return [Lifetime(scale * chance.randint(1, 5000), first, first + chance.randint(0, 12)) for first in firsts]


@pytest.fixture
def placed(monkeypatch) -> list[list[int]]:
    """The orders that are tried."""
    orders: list[list[int]] = []
    place = memory_plan._Packing.place
    monkeypatch.setattr(
        memory_plan._Packing, "place", lambda packing, order: (orders.append(order), place(packing, order))[1]
    )
    return orders


@given(st.lists(st.tuples(lifetimes, st.lists(st.integers(0, 10**7), min_size=4, max_size=4)), max_size=30))
def test_a_planner_keeps_living_buffers_apart_at_every_size(drawn):
    planner = MemoryPlanner()
    for number in range(4):
        buffers = [each._replace(nbytes=sizes[number]) for each, sizes in drawn]
        plan = planner.plan(buffers)
        assert plan.nbytes >= least_nbytes(buffers)
        for i, (a, start) in enumerate(zip(buffers, plan.offsets, strict=True)):
            assert start % ALIGNMENT == 0
            assert start + a.nbytes <= plan.nbytes
            for b, other in list(zip(buffers, plan.offsets, strict=True))[:i]:
                if a.overlaps(b) and a.nbytes and b.nbytes:
                    assert start + a.nbytes <= other or other + b.nbytes <= start


def test_the_last_order_serves_the_same_buffers_when_all_grow_alike(placed):
    planner, buffers = MemoryPlanner(), random_lifetimes(random.Random(10), MANY)
    first = planner.plan(buffers)
    assert len(placed) > 3  # no order was at once good enough
    placed.clear()
    larger = planner.plan([each._replace(nbytes=each.nbytes * 3 // 2 // 64 * 64) for each in buffers])
    assert len(placed) == 1
    assert larger.nbytes <= 1.51 * first.nbytes


def test_an_order_that_fits_worse_is_searched_anew():
    chance = random.Random(5)
    for _ in range(20):
        planner, buffers = MemoryPlanner(), random_lifetimes(chance, MANY)
        planner.plan(buffers)
        other = [each._replace(nbytes=other.nbytes) for each, other in zip(buffers, buffers[::-1], strict=True)]
        assert planner.plan(other).nbytes <= 1.15 * least_nbytes(other)


def test_saving_kilobytes_is_not_worth_a_search(placed):
    """A search costs no more than it may save: an arena of a decoder's step is planned again and again."""
    buffers = random_lifetimes(random.Random(10), 1)
    assert plan_memory(buffers).nbytes > memory_plan.NEAR * least_nbytes(buffers)
    few = len(placed)
    placed.clear()
    plan_memory([each._replace(nbytes=MANY * each.nbytes) for each in buffers])
    assert few <= 5 < len(placed)


def test_an_order_found_for_a_small_arena_does_not_bind_a_large_one():
    """Where there was little to save nothing was searched for; megabytes are worth it."""
    chance = random.Random(7)
    for _ in range(20):
        planner, buffers = MemoryPlanner(), random_lifetimes(chance, 1)
        planner.plan(buffers)
        large = [each._replace(nbytes=MANY * each.nbytes) for each in buffers]
        assert planner.plan(large).nbytes <= 1.04 * plan_memory(large).nbytes


# --- programs ---------------------------------------------------------------------------------------------------------
def random_program(chance: random.Random) -> Program:
    """Up to 40 steps that read up to three earlier tensors, mostly recent ones; sizes may depend on n."""
    unit = N if chance.random() < 0.5 else 1
    registers = [Register((unit * MANY * chance.randint(1, 400),), "float32", "input", index=0)]
    steps: list[Step] = []
    for number in range(1, chance.randint(2, 40)):
        back = [chance.randint(1, chance.choice((1, 6, 40))) for _ in range(chance.randint(1, 3))]
        reads = tuple(sorted({max(0, number - distance) for distance in back}))
        registers.append(Register((unit * MANY * chance.randint(1, 400),), "float32", "buffer"))
        steps.append(Step(0, f"f{number}", reads, (number,)))
    last = len(registers) - 1
    return Program(
        "main",
        ("n",),
        (TensorSpec(registers[0].shape, "float32", "x"), TensorSpec((N,), "float32", "sizes")),
        (TensorSpec(registers[last].shape, "float32", "y"),),
        tuple(registers),
        tuple(steps),
        (last,),
    )


def least_of(program: Program, plan: ExecutionPlan) -> int:
    """The lower bound that liveness gives for a plan's arena."""
    sizes = [memory.nbytes_of(shape, r.dtype) for shape, r in zip(plan.shapes, program.registers, strict=True)]
    return least_nbytes([Lifetime(sizes[register], *span) for register, span in spans_of(program).items()])


def within(ratios: list[float], limit: float) -> float:
    """The share of ratios that are at most `limit`."""
    return sum(ratio <= limit for ratio in ratios) / len(ratios)


def test_random_programs_need_hardly_more_than_lives_at_one_time():
    """Not all can: there are sets of lifetimes that fit into no arena as small as the bound."""
    chance = random.Random(1)
    ratios: list[float] = []
    for _ in range(200):
        program, n = random_program(chance), chance.randint(1, 64)
        x, _ = program.inputs
        plan = ExecutionPlan(program, (tuple(dims.evaluate(dim, {"n": n}) for dim in x.shape), (n,)))
        ratios.append(plan.arena_nbytes / least_of(program, plan))
    assert min(ratios) >= 1
    assert within(ratios, 1.05) >= 0.98
    assert max(ratios) <= 1.15


def test_so_do_sets_of_lifetimes_whatever_they_come_from():
    chance = random.Random(1)
    ratios: list[float] = []
    for _ in range(200):
        steps = chance.randint(1, 60)
        firsts = [chance.randint(0, steps) for _ in range(chance.randint(1, 60))]
        buffers = [
            Lifetime(MANY * chance.randint(1, 5000), first, chance.randint(first, steps + 3)) for first in firsts
        ]
        ratios.append(plan_memory(buffers).nbytes / least_nbytes(buffers))
    assert within(ratios, 1.05) >= 0.95
    assert max(ratios) <= 1.15


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_residual_block_keeps_its_input_and_shares_the_rest(n):
    """x is read again by the last step: at most x, and two of the chain live at one time."""
    registers = [Register((N * 1000,), "float32", "input" if number == 0 else "buffer", index=0) for number in range(6)]
    steps = [Step(0, f"f{number}", (number - 1,), (number,)) for number in range(1, 5)]
    steps.append(Step(0, "add", (0, 4), (5,)))
    spec = TensorSpec((N * 1000,), "float32", "x")
    outputs = (TensorSpec(spec.shape, "float32", "y"),)
    program = Program("main", ("n",), (spec,), outputs, tuple(registers), tuple(steps), (5,))
    assert ExecutionPlan(program, ((n * 1000,),)).arena_nbytes == 3 * memory.align(n * 4000)


def plan_of(program: Program, memory_of: ProgramMemory, n: int) -> ExecutionPlan:
    x, _ = program.inputs
    return ExecutionPlan(program, (tuple(dims.evaluate(dim, {"n": n}) for dim in x.shape), (n,)), memory=memory_of)


@given(st.integers(0, 50), st.lists(st.integers(1, 64), min_size=1, max_size=8))
def test_plans_after_one_another_are_as_right_as_single_ones(seed, sizes):
    program = random_program(random.Random(seed))
    placing = ProgramMemory(program)
    for n in sizes:
        plan, alone = plan_of(program, placing, n), plan_of(program, ProgramMemory(program), n)
        assert plan.shapes == alone.shapes
        spans = spans_of(program)
        ends = {r: start + memory.nbytes_of(plan.shapes[r], "float32") for r, start in plan.offsets.items()}
        assert max(ends.values()) <= plan.arena_nbytes
        for a, b in itertools.combinations(plan.offsets, 2):
            if Lifetime(1, *spans[a]).overlaps(Lifetime(1, *spans[b])):
                assert ends[a] <= plan.offsets[b] or ends[b] <= plan.offsets[a]


def test_sizes_that_fit_stay_in_their_places():
    program = random_program(random.Random(1))
    placing = ProgramMemory(program)
    first = plan_of(program, placing, 64)
    assert [plan_of(program, placing, n).offsets for n in (1, 63, 20)] == [first.offsets] * 3


def test_sizes_that_grow_are_placed_anew_every_now_and_then():
    program = random_program(random.Random(1))
    placing = ProgramMemory(program)
    plans = [plan_of(program, placing, n) for n in range(20, 120)]
    assert len({tuple(plan.offsets.values()) for plan in plans}) <= 10  # 1.25 ** 8 is 6
    assert plans[-1].arena_nbytes <= 1.3 * plan_of(program, ProgramMemory(program), 119).arena_nbytes
