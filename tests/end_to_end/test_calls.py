"""Calls in real programs: results in given arrays, time limits, cancellation, asyncio, keywords."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
import time

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard import dims, errors
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.testing import assert_offloaded

WIDTH, LARGE, SMALL = 64, 400, 3  # results of so many rows are lent memory, or copied


def layers(count: int = 3) -> IRModule:
    """Count times relu(x @ w); the result before the last one is the second output."""
    b = FunctionBuilder()
    weight = np.eye(WIDTH, dtype=np.float32)
    value = before = b.input("x", (dims.symbol("n"), WIDTH))
    for _ in range(count):
        before, value = value, b.op("nn.relu", b.op("matmul", value, weight))
    return IRModule({"main": b.function(value, b.op("sum", before, axes=(0,)))})


def doubling_loop() -> IRModule:
    """Double x for as long as it is below 10: a VM function."""
    functions = {}
    for name, make in {
        "going": lambda b, x: b.op("less", x, np.float32(10)),
        "doubled": lambda b, x: b.op("multiply", x, np.float32(2)),
    }.items():
        b = FunctionBuilder()
        functions[name] = b.function(make(b, b.input("x", ())), attrs={"private": True})
    b = FunctionBuilder()
    x = b.input("x", ())
    return IRModule({"main": b.function(b.while_("going", "doubled", [x], x.type)), **functions})


@pytest.fixture(scope="module", params=[[], ["dnnl"]], ids=["native-cpu", "dnnl"])
def exe(request: pytest.FixtureRequest) -> ky.Executable:
    compiled = ky.compile(layers(), backends=request.param)
    if request.param:
        assert_offloaded(compiled, "dnnl")
    return compiled


def feed(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, WIDTH), dtype=np.float32)


def wanted(x: np.ndarray) -> list[np.ndarray]:
    last = np.maximum(x, 0)
    return [last, last.sum(0)]


def names(exe: ky.Executable) -> list[str]:
    return [info.name for info in exe.outputs]


def assert_usable(exe: ky.Executable) -> None:
    x = feed(SMALL)
    for found, expected in zip(exe(x), wanted(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


# --- outputs in given arrays ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [SMALL, LARGE])
def test_results_are_written_to_given_arrays(exe: ky.Executable, rows: int) -> None:
    x, (first, second) = feed(rows), names(exe)
    out = {first: np.full((rows, WIDTH), np.nan, np.float32), second: np.full(WIDTH, np.nan, np.float32)}
    for _ in range(3):
        results = exe.run({"x": x}, out=out)
        for name, expected in zip(names(exe), wanted(x), strict=True):
            assert results[name].numpy() is out[name]
            np.testing.assert_allclose(out[name], expected, rtol=1e-5, atol=1e-5)
            out[name].fill(np.nan)
    assert_usable(exe)
    assert np.isnan(out[first]).all(), "later calls write elsewhere"


@pytest.mark.parametrize("offset", range(4))
def test_some_of_them_wherever_they_lie(exe: ky.Executable, offset: int) -> None:
    x, (first, second) = feed(LARGE), names(exe)
    there = np.zeros(LARGE * WIDTH + offset, np.float32)[offset:].reshape(LARGE, WIDTH)
    results = exe.run({"x": x}, out={first: there})
    np.testing.assert_allclose(there, wanted(x)[0], rtol=1e-5)
    np.testing.assert_allclose(results[second], wanted(x)[1], rtol=1e-5, atol=1e-5)
    assert results[first].numpy() is there


def test_the_only_output_needs_no_name() -> None:
    b = FunctionBuilder()
    exe = ky.compile(IRModule({"main": b.function(b.op("exp", b.input("x", (dims.symbol("n"),))))}), backends=[])
    for size in (3, 50_000):
        x, out = np.linspace(0, 1, size, dtype=np.float32), np.empty(size, np.float32)
        exe.run({"x": x}, out=out)
        np.testing.assert_allclose(out, np.exp(x), rtol=1e-6)


def read_only() -> np.ndarray:
    array = np.zeros((SMALL, WIDTH), np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((SMALL + 1, WIDTH), np.float32), "wrong shape"),
        (np.zeros(SMALL * WIDTH, np.float32), "wrong rank"),
        (np.zeros((SMALL, WIDTH)), "wrong dtype"),
        (np.zeros((SMALL, WIDTH), ">f4"), "wrong dtype"),
        (np.zeros((WIDTH, SMALL), np.float32).T, "not dense"),
        (np.zeros((SMALL, 2 * WIDTH), np.float32)[:, ::2], "not dense"),
        (read_only(), "read-only"),
        ([[0.0]], "no NumPy array"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(exe: ky.Executable, array: np.ndarray, said: str) -> None:
    before = np.copy(array)
    with pytest.raises(errors.OutputError, match=said) as caught:
        exe.run({"x": feed(SMALL)}, out={names(exe)[0]: array})
    assert caught.value.code == "KY506"
    assert names(exe)[0] in str(caught.value.where)
    np.testing.assert_array_equal(array, before)
    assert_usable(exe)


def test_memory_that_the_call_uses_otherwise_is_refused(exe: ky.Executable) -> None:
    x, (first, second) = feed(SMALL), names(exe)
    with pytest.raises(errors.OutputError, match="shares memory with input 'x'"):
        exe.run({"x": x}, out={first: x})
    both = np.zeros((SMALL, WIDTH), np.float32)
    with pytest.raises(errors.OutputError, match=f"shares memory with output '{first}'"):
        exe.run({"x": x}, out={first: both, second: both[0]})
    with pytest.raises(errors.OutputError, match="for no output"):
        exe.run({"x": x}, out={"y": both})
    with pytest.raises(errors.OutputError, match="by name"):
        exe.run({"x": x}, out=both)
    halves = np.zeros((2 * SMALL, WIDTH), np.float32)
    exe.run({"x": halves[:SMALL]}, out={first: halves[SMALL:]})


def test_a_vm_function_writes_to_given_arrays_too() -> None:
    exe = ky.compile(doubling_loop(), backends=[])
    assert exe.vm_functions
    out = np.zeros((), np.float32)
    assert exe.run({"x": np.float32(1)}, out=out)["output_0"].numpy() is out
    assert out == 16
    with pytest.raises(errors.OutputError, match="wrong rank"):
        exe.run({"x": np.float32(1)}, out=np.zeros(1, np.float32))


# --- keywords ---------------------------------------------------------------------------------------------------------
def test_inputs_by_keyword() -> None:
    b = FunctionBuilder()
    x, y = b.input("x", (2,)), b.input("y", (2,))
    exe = ky.compile(IRModule({"main": b.function(b.op("subtract", x, y))}), backends=[])
    ones, twos = np.ones(2, np.float32), np.full(2, 2, np.float32)
    for result in (exe(x=twos, y=ones), exe(twos, y=ones), exe(y=ones, x=twos)):
        assert result.numpy().tolist() == [1.0, 1.0]
    for args, feeds in (
        ((), {"x": ones}),
        ((ones,), {"x": ones}),
        ((ones, ones), {"y": ones}),
        ((), {"x": ones, "z": ones}),
    ):
        with pytest.raises(errors.InputNameError):
            exe(*args, **feeds)


# --- time limits and cancellation -------------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=["program", "loop"])
def endless(request: pytest.FixtureRequest) -> tuple[ky.Executable, dict[str, np.ndarray]]:
    """A program that takes very long: of a thousand steps, or of steps without end."""
    if request.param == "loop":
        return ky.compile(doubling_loop(), backends=[]), {"x": np.zeros((), np.float32)}
    return long_program()


def long_program() -> tuple[ky.Executable, dict[str, np.ndarray]]:
    return ky.compile(layers(2000), backends=["dnnl"]), {"x": feed(20_000)}


def test_a_time_limit_ends_a_call(endless: tuple[ky.Executable, dict[str, np.ndarray]]) -> None:
    exe, feeds = endless
    for limit in (1e-6, 0.05):
        with pytest.raises(errors.CallTimeoutError, match="longer than its time limit") as caught:
            exe.run(feeds, timeout=limit)
        assert caught.value.code == "KY507"
        assert isinstance(caught.value, TimeoutError)
    with pytest.raises(errors.CallTimeoutError):
        ky.VirtualMachine(exe).run("main", feeds, timeout=0.05)


def test_a_call_within_its_limit_is_a_call(exe: ky.Executable) -> None:
    x = feed(LARGE)
    results = exe.run({"x": x}, timeout=600, cancellation=ky.Cancellation())
    for found, expected in zip(results.values(), wanted(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_is_positive(exe: ky.Executable, limit: float) -> None:
    with pytest.raises(errors.ExecutionError, match="must be positive"):
        exe.run({"x": feed(1)}, timeout=limit)


def test_another_thread_cancels_a_call(endless: tuple[ky.Executable, dict[str, np.ndarray]]) -> None:
    exe, feeds = endless
    cancellation = ky.Cancellation()
    timer = threading.Timer(0.05, cancellation.cancel)
    timer.start()
    with pytest.raises(errors.CallCancelledError, match="cancelled") as caught:
        exe.run(feeds, cancellation=cancellation)
    timer.join()
    assert caught.value.code == "KY508"
    with pytest.raises(errors.CallCancelledError):
        exe.run(feeds, cancellation=cancellation)


def test_the_executable_stays_usable(exe: ky.Executable) -> None:
    for _ in range(3):
        with pytest.raises(errors.CallTimeoutError):
            exe.run({"x": feed(LARGE)}, timeout=1e-9)
        assert_usable(exe)


def test_waiting_for_other_calls_counts() -> None:
    exe, feeds = long_program()
    machine, first = ky.VirtualMachine(exe, contexts=1), ky.Cancellation()
    ended: list[object] = []

    def occupy() -> None:
        with pytest.raises(errors.CallCancelledError) as caught:
            machine.run("main", feeds, cancellation=first)
        ended.append(caught.value)

    holder = threading.Thread(target=occupy)
    holder.start()
    while not len(machine.contexts) or machine.contexts._idle:  # until it has the one
        time.sleep(0.001)
    with pytest.raises(errors.CallTimeoutError):
        machine.run("main", feeds, timeout=0.05)
    assert not ended
    first.cancel()
    holder.join()
    assert ended


def test_instruments_see_the_steps_until_the_limit(exe: ky.Executable) -> None:
    machine, cancellation, seen = ky.VirtualMachine(exe), ky.Cancellation(), []

    def instrument(step: object, name: str, before_run: bool, ret_value: object, *args: object) -> None:
        seen.append(name)
        cancellation.cancel()

    machine.set_instrument(instrument)
    with pytest.raises(errors.CallCancelledError):
        machine.run("main", {"x": feed(1)}, cancellation=cancellation)
    assert len(set(seen)) == 1


# --- asyncio ----------------------------------------------------------------------------------------------------------
def test_awaiting_several_calls_leaves_the_event_loop_free(exe: ky.Executable) -> None:
    feeds = [feed(rows) for rows in (SMALL, LARGE) * 8]

    async def main() -> tuple[list[dict[str, ky.Tensor]], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        results = await asyncio.gather(*(exe.run_async({"x": x}) for x in feeds))
        ticking.cancel()
        return results, ticks

    results, ticks = asyncio.run(main())
    assert ticks > 0
    for x, found in zip(feeds, results, strict=True):
        for array, expected in zip(found.values(), wanted(x), strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-5)


def test_awaited_calls_end_with_their_task_and_their_limit(
    endless: tuple[ky.Executable, dict[str, np.ndarray]],
) -> None:
    exe, feeds = endless

    async def main() -> None:
        calls = [asyncio.create_task(exe.run_async(feeds)) for _ in range(5)]
        await asyncio.sleep(0.05)
        for call in calls:
            call.cancel()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in found] == [asyncio.CancelledError] * 5
        with pytest.raises(errors.CallTimeoutError):
            await exe.run_async(feeds, timeout=0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(exe.run_async(feeds), 0.05)

    asyncio.run(main())


def test_awaiting_raises_what_the_call_raises(exe: ky.Executable) -> None:
    with pytest.raises(errors.InputNameError):
        asyncio.run(exe.run_async({"z": feed(1)}))
    out = np.empty((SMALL, WIDTH), np.float32)
    results = asyncio.run(exe.run_async({"x": feed(SMALL)}, out={names(exe)[0]: out}))
    assert results[names(exe)[0]].numpy() is out


def _await_in_child(exe: ky.Executable, answers: multiprocessing.Queue) -> None:
    answers.put(asyncio.run(exe.run_async({"x": feed(SMALL)}))[names(exe)[0]].numpy())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what forks here has threads, on purpose
def test_a_forked_process_awaits(exe: ky.Executable) -> None:
    x = feed(SMALL)
    asyncio.run(exe.run_async({"x": x}))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_await_in_child, args=(exe, answers))
    child.start()
    np.testing.assert_allclose(answers.get(timeout=60), wanted(x)[0], rtol=1e-5)
    child.join()
    assert child.exitcode == 0


# --- size 0 -----------------------------------------------------------------------------------------------------------
def rows_alone(rows: dims.Dim) -> IRModule:
    b = FunctionBuilder()
    product = b.op("matmul", b.input("x", (rows, WIDTH)), np.eye(WIDTH, 5, dtype=np.float32))
    return IRModule({"main": b.function(b.op("nn.relu", product), b.op("reshape", product, shape=(rows * 5,)))})


@pytest.mark.parametrize("backends", [[], ["dnnl"]], ids=["native-cpu", "dnnl"])
@pytest.mark.parametrize("rows", [dims.symbol("n"), 0], ids=["symbolic", "fixed"])
def test_no_rows_give_no_rows(backends: list[str], rows: dims.Dim) -> None:
    exe = ky.compile(rows_alone(rows), backends=backends)
    out = np.empty((0, 5), np.float32)
    for results in (exe(feed(0)), exe.run({"x": feed(0)}, out={"output_0": out}, timeout=60).values()):
        assert [(each.shape, each.dtype) for each in results] == [((0, 5), "float32"), ((0,), "float32")]
    if rows != 0:
        assert exe(feed(2))[0].shape == (2, 5)


def test_results_of_nothing_that_are_not_empty_are_computed(exe: ky.Executable) -> None:
    """Code is compiled for sizes of 1 and more; for a size of 0 the model is compiled when it comes."""
    for _ in range(2):
        last, total = exe(feed(0))
        assert last.shape == (0, WIDTH)
        assert total.numpy().tolist() == [0.0] * WIDTH
    out = {names(exe)[1]: np.full(WIDTH, np.nan, np.float32)}
    exe.run({"x": feed(0)}, out=out, timeout=60)
    assert not out[names(exe)[1]].any()
    assert_usable(exe)


def test_a_saved_program_refuses_them_in_words(exe: ky.Executable) -> None:
    loaded = pickle.loads(pickle.dumps(exe))
    with pytest.raises(errors.InputShapeError, match="the inputs are empty, but not all results are") as caught:
        loaded(feed(0))
    assert "fixed size 0" in str(caught.value.hint)
    assert_usable(loaded)


def test_of_two_sizes_one_may_be_0() -> None:
    """The other stays open, and entry functions that share no code are bound one by one."""
    b, other = FunctionBuilder(), FunctionBuilder()
    n, m = dims.symbol("n"), dims.symbol("m")
    both = b.op("concat", b.input("x", (2 * n, 3)), b.input("y", (m, 3)), axis=0)
    module = IRModule({"main": b.function(both), "other": other.function(other.op("exp", other.input("x", (n,))))})
    vm = ky.VirtualMachine(ky.compile(module, backends=[]))
    for rows, more in ((2, 3), (0, 4), (0, 5), (6, 0)):
        x, y = np.full((rows, 3), 1, np.float32), np.full((more, 3), 2, np.float32)
        assert np.array_equal(vm["main"](x, y), np.concatenate([x, y]))
    assert vm["other"](np.zeros(0, np.float32)).shape == (0,)


def test_what_does_not_work_on_nothing_is_refused_as_before() -> None:
    b = FunctionBuilder()
    exe = ky.compile(
        IRModule({"main": b.function(b.op("max", b.input("x", (dims.symbol("n"), 3), "int32"), axes=(0,)))})
    )
    with pytest.raises(errors.InputShapeError, match="wrong rank"):
        exe(np.zeros((0, 3, 1), np.int32))


def test_branches_take_empty_tensors() -> None:
    functions = {}
    for name in ("exp", "tanh"):
        b = FunctionBuilder()
        functions[name] = b.function(b.op(name, b.input("x", (dims.symbol("n"),))), attrs={"private": True})
    b = FunctionBuilder()
    x, flag = b.input("x", (dims.symbol("n"),)), b.input("flag", (), "bool")
    exe = ky.compile(IRModule({"main": b.function(b.if_(flag, "exp", "tanh", [x], x.type)), **functions}), backends=[])
    for size in (0, 0, 0, 3):
        assert exe(np.zeros(size, np.float32), True).numpy().tolist() == [1.0] * size
