"""Which loops over steps run at the same time, and what runs before and after them."""

from __future__ import annotations

from kernelyard.ir import TensorType
from kernelyard.tir import PrimFunc
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard_native_cpu.schedule.groups import make_groups
from kernelyard_native_cpu.schedule.step_loops import LoopOrder, order_loops

SIZE = 300  # elements of a state: they are no rows that groups share


def running_sum(b: PrimFuncBuilder, start: Buffer, added: Buffer) -> Buffer:
    """Append a loop of five steps that adds to a state what it starts from."""
    state = b.compute((SIZE,), lambda i: start[i] * 2, "state")
    with b.steps(5):
        new = b.compute((SIZE,), lambda i: state[i] + added[i], "new")
        b.store(state, (SIZE,), lambda i: (i,), lambda i: new[i])
    return state


def builder() -> tuple[PrimFuncBuilder, Buffer]:
    b = PrimFuncBuilder()
    return b, b.input("x", TensorType((SIZE,), "float32"))


def order_of(function: PrimFunc) -> LoopOrder:
    return order_loops(make_groups(function))


def test_what_loops_start_from_is_made_before_them() -> None:
    b, x = builder()
    order = order_of(b.finish((running_sum(b, x, x), running_sum(b, x, x))))
    assert [len(part) for part in (order.before, order.together, order.after)] == [2, 2, 0]


def test_what_reads_their_results_runs_after_them() -> None:
    b, x = builder()
    first, second = running_sum(b, x, x), running_sum(b, x, x)
    order = order_of(b.finish((b.reduce("sum", (), (SIZE,), lambda at, p: first[p[0]] * second[p[0]]),)))
    assert [len(part) for part in (order.before, order.together, order.after)] == [2, 2, 1]


def test_loops_that_read_what_others_wrote_run_in_turn() -> None:
    b, x = builder()
    first = running_sum(b, x, x)
    order = order_of(b.finish((running_sum(b, x, first),)))
    assert (len(order.before), order.together, order.after) == (4, (), ())


def test_loops_run_in_turn_where_something_between_needs_the_first() -> None:
    b, x = builder()
    first = running_sum(b, x, x)
    between = b.compute((SIZE,), lambda i: first[i] * 3, "between")
    order = order_of(b.finish((running_sum(b, between, x),)))
    assert order.together == ()


def test_a_single_loop_stays_where_it_is() -> None:
    b, x = builder()
    assert order_of(b.finish((running_sum(b, x, x),))).together == ()
