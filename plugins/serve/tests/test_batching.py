"""Requests of one model become calls: joined, bounded, given up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kernelyard.errors import CallTimeoutError, InputShapeError
from kernelyard_serve.batching import Arrays, Batcher, BatchPolicy
from kernelyard_serve.errors import QueueFullError


class Model:
    """Doubles x, records its calls, and waits for `gate`."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.threads: set[int] = set()
        self.cancellations: list[Any] = []
        self.seen: list[tuple[int, int]] = []  # requests and rows of a call, as the observer is told
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, feeds: Arrays, timeout: float | None, cancellation: Any) -> Arrays:
        self.cancellations.append(cancellation)
        self.threads.add(threading.get_ident())
        self.calls.append(feeds["x"].shape)
        assert self.gate.wait(10)
        if (feeds["x"] < 0).any():
            raise InputShapeError("negative")
        return {"y": 2 * feeds["x"]}

    def record_call(self, waited: Sequence[float], rows: int, seconds: float) -> None:
        self.seen.append((len(waited), rows))


def run(policy: BatchPolicy, scenario: Callable[[Model, Batcher], Awaitable[None]], batched: bool = True) -> Model:
    model = Model()

    async def main() -> None:
        with ThreadPoolExecutor(policy.callers) as threads:
            await scenario(model, Batcher(model, policy, threads, model, batched=batched))

    asyncio.run(main())
    return model


def feed(*shape: int, value: float = 1.0) -> Arrays:
    return {"x": np.full(shape, value, np.float32)}


async def behind_a_call(model: Model, batcher: Batcher) -> asyncio.Future[Arrays]:
    """Occupy the only caller."""
    model.gate.clear()
    first = batcher.submit(feed(1, 9))
    while not model.calls:
        await asyncio.sleep(0.001)
    return first


ONE_CALLER = BatchPolicy(max_rows=4, callers=1)


def test_requests_that_wait_are_joined_and_each_gets_its_rows() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        waiting = [batcher.submit(feed(rows, 3, value=rows)) for rows in (1, 2, 1)]
        model.gate.set()
        await first
        for rows, future in zip((1, 2, 1), waiting, strict=True):
            np.testing.assert_array_equal((await future)["y"], np.full((rows, 3), 2 * rows))

    model = run(ONE_CALLER, scenario)
    assert model.calls == [(1, 9), (4, 3)]
    assert model.seen == [(1, 1), (3, 4)]


def test_no_call_has_more_rows_than_it_may_nor_other_shapes() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        waiting = [batcher.submit(feed(*shape)) for shape in ((3, 3), (1, 5), (2, 3), (1, 3), (9, 3), (1, 5))]
        model.gate.set()
        await asyncio.gather(first, *waiting)

    assert sorted(run(ONE_CALLER, scenario).calls[1:]) == [(2, 5), (3, 3), (3, 3), (9, 3)]


def test_a_model_that_is_not_batched_runs_each_request_alone() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        waiting = [batcher.submit(feed(1, 3)) for _ in range(3)]
        model.gate.set()
        await asyncio.gather(first, *waiting)

    assert run(ONE_CALLER, scenario, batched=False).calls[1:] == [(1, 3)] * 3


def test_a_request_waits_for_others_until_its_delay_is_over() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = batcher.submit(feed(1, 3))
        await asyncio.sleep(0.01)
        second = batcher.submit(feed(1, 3))
        await asyncio.gather(first, second)

    assert run(BatchPolicy(max_rows=4, max_delay=0.3, callers=2), scenario).calls == [(2, 3)]


def test_a_full_batch_waits_for_nothing() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        waiting = [batcher.submit(feed(2, 3)) for _ in range(2)]
        async with asyncio.timeout(10):
            await asyncio.gather(*waiting)

    assert run(BatchPolicy(max_rows=4, max_delay=1000.0, callers=2), scenario).calls == [(4, 3)]


def test_requests_beyond_the_queue_are_refused() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        waiting = [batcher.submit(feed(1, 3)) for _ in range(2)]
        with pytest.raises(QueueFullError) as caught:
            batcher.submit(feed(1, 3))
        assert caught.value.retry_after >= 1
        model.gate.set()
        await asyncio.gather(first, *waiting)
        assert (batcher.waiting, batcher.running) == (0, 0)

    run(BatchPolicy(max_rows=1, max_queue=2, callers=1), scenario)


def test_a_request_whose_deadline_passes_is_not_run() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        late = batcher.submit(feed(1, 3), time.monotonic() + 0.02)
        with pytest.raises(CallTimeoutError):
            await late
        model.gate.set()
        await first
        assert batcher.waiting == 0

    assert run(ONE_CALLER, scenario).calls == [(1, 9)]


def test_a_request_whose_deadline_has_passed_is_not_even_run_at_once() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        model.gate.set()
        for _ in range(5):  # calls that are known to be quick are run where they come in
            await batcher.submit(feed(1, 9))
        with pytest.raises(CallTimeoutError):
            await batcher.submit(feed(1, 3), time.monotonic() - 1)

    assert run(ONE_CALLER, scenario).calls == [(1, 9)] * 5


def test_a_request_that_would_not_be_answered_in_time_is_refused_at_once() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        await asyncio.sleep(0.2)  # so that a call is known to take that long
        model.gate.set()
        await first
        first = await behind_a_call(model, batcher)
        second = batcher.submit(feed(1, 3), time.monotonic() + 60.0)
        with pytest.raises(QueueFullError):
            batcher.submit(feed(1, 3), time.monotonic() + 0.01)
        in_time = batcher.submit(feed(1, 3), time.monotonic() + 60.0)
        model.gate.set()
        await asyncio.gather(first, second, in_time)

    run(BatchPolicy(max_rows=1, callers=1), scenario)


def test_a_model_that_was_slow_is_asked_again_when_nothing_waits() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        await asyncio.sleep(0.5)
        model.gate.set()
        await first
        first = await behind_a_call(model, batcher)
        in_time = batcher.submit(feed(1, 3), time.monotonic() + 0.04)  # less than a call is thought to take
        with pytest.raises(CallTimeoutError):
            await in_time
        model.gate.set()
        await first

    run(ONE_CALLER, scenario)


def test_a_result_that_comes_late_is_no_answer() -> None:
    """As where the event loop is behind, so that timers are late, too."""

    async def scenario(model: Model, batcher: Batcher) -> None:
        model.gate.clear()
        late = batcher.submit(feed(1, 3), time.monotonic() + 0.05)
        while not model.calls:
            await asyncio.sleep(0.001)
        model.gate.set()
        time.sleep(0.2)
        with pytest.raises(CallTimeoutError):
            await late

    run(ONE_CALLER, scenario)


def test_a_request_that_is_given_up_is_not_run() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        left, kept = batcher.submit(feed(1, 3)), batcher.submit(feed(1, 3))
        left.cancel()
        model.gate.set()
        await asyncio.gather(first, kept)
        assert batcher.waiting == 0

    assert run(ONE_CALLER, scenario).calls == [(1, 9), (1, 3)]


def test_a_call_that_nobody_waits_for_is_cancelled() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        assert not model.cancellations[0].is_cancelled
        first.cancel()
        await asyncio.sleep(0.01)
        assert model.cancellations[0].is_cancelled
        model.gate.set()
        while batcher.running:
            await asyncio.sleep(0.001)

    run(ONE_CALLER, scenario)


def test_a_request_at_fault_fails_alone() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        first = await behind_a_call(model, batcher)
        good, bad = batcher.submit(feed(1, 3)), batcher.submit(feed(1, 3, value=-1))
        model.gate.set()
        await first
        assert (await good)["y"].tolist() == [[2, 2, 2]]
        with pytest.raises(InputShapeError):
            await bad

    assert run(ONE_CALLER, scenario).calls[1:] == [(2, 3), (1, 3), (1, 3)]


def test_quick_calls_are_made_on_the_event_loop() -> None:
    async def scenario(model: Model, batcher: Batcher) -> None:
        for _ in range(50):
            future = batcher.submit(feed(1, 3))
            if future.done():
                break
            await future
        assert future.done()
        assert threading.get_ident() in model.threads

    run(ONE_CALLER, scenario)
