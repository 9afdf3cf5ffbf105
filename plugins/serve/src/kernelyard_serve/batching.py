"""Batcher: runs the requests of one model, several of them as one call where they fit together.

All of it but the calls happens on the event loop, so that nothing is locked.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

import kernelyard as ky
from kernelyard.errors import CallCancelledError, CallTimeoutError, KernelyardError
from kernelyard.runtime.api import processors
from kernelyard_serve.errors import QueueFullError, as_ours

# A call that takes less than this is made on the event loop: handing it to a thread and back takes about as long.
QUICK_SECONDS = 2e-4
_MAX_TIMED = 256  # sets of shapes whose time is known
_WEIGHT = 0.1  # of the last call in what is estimated from calls

Arrays: TypeAlias = dict[str, np.ndarray]
Call: TypeAlias = "Callable[[Arrays, float | None, ky.Cancellation | None], Arrays]"
"""`call(feeds, timeout, cancellation)`: one call of the executable."""
Shapes: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class BatchPolicy:
    """Set how requests become calls.

    max_rows: the most rows, along the first axis of every input, that requests are joined to; 1 joins none. max_delay:
    for how many seconds a request waits for others while a caller is free. max_queue: how many requests may wait.
    callers: how many calls run at once.
    """

    max_rows: int = 1
    max_delay: float = 0.0
    max_queue: int = 128
    callers: int = processors()


class BatchObserver(Protocol):
    """Observe every call of a batcher."""

    def record_call(self, waited: Sequence[float], rows: int, seconds: float) -> None:
        """Record a call: for how long each of its requests waited, its rows, and how long it took."""


class Request:
    """Hold one request from its arrival to its answer; it waits in a lane until it is run."""

    __slots__ = ("arrived", "deadline", "feeds", "future", "key", "lane", "rows", "running", "timer")

    def __init__(
        self, feeds: Arrays, key: Shapes | None, rows: int, future: asyncio.Future[Arrays], deadline: float | None
    ) -> None:
        self.feeds, self.key, self.rows, self.future, self.deadline = feeds, key, rows, future, deadline
        self.arrived = time.monotonic()
        self.lane: Lane | None = None
        self.running: RunningBatch | None = None
        self.timer: asyncio.TimerHandle | None = None


class Lane:
    """Queue requests that may be run together, oldest first: their shapes are the same but for the rows."""

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()
        self.rows = 0

    def add(self, request: Request) -> None:
        self.requests.append(request)
        self.rows += request.rows
        request.lane = self

    def remove(self, request: Request) -> None:
        self.requests.remove(request)
        self.rows -= request.rows
        request.lane = None

    def take(self, max_rows: int) -> list[Request]:
        """Remove and return the oldest requests that together have at most so many rows; at least one."""
        taken: list[Request] = []
        rows = 0
        while self.requests and (not taken or rows + self.requests[0].rows <= max_rows):
            request = self.requests[0]
            self.remove(request)
            rows += request.rows
            taken.append(request)
        return taken


class RunningBatch:
    """Hold the requests that are being run as one call."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.cancellation = ky.Cancellation()
        self.started = time.monotonic()

    def timeout(self) -> float | None:
        """Return the seconds until nobody waits for the call any more; None where somebody waits for ever."""
        deadlines = [request.deadline for request in self.requests]
        if None in deadlines:
            return None
        return max(1e-6, max(each for each in deadlines if each is not None) - time.monotonic())


class Throughput:
    """Estimate from past calls when a request that comes now is answered; 0 s before the first call has ended."""

    def __init__(self) -> None:
        self._per_request = self._per_call = self._last_end = 0.0

    def record_end(self, started: float, requests: int) -> None:
        """Record a call that has just ended. started: when it was handed to a thread, by the monotonic clock."""
        now = time.monotonic()
        self._per_request += _WEIGHT * ((now - max(started, self._last_end)) / requests - self._per_request)
        self._per_call += _WEIGHT * (now - started - self._per_call)
        self._last_end = now

    def seconds(self, waiting: int) -> float:
        """Return in how many seconds a request is answered behind so many that wait."""
        return waiting * self._per_request + self._per_call


class Batcher:
    """Run requests of one executable: `await batcher.submit(feeds)`.

    batched: rows do not depend on one another, so that requests may be joined. executor: the threads that call.
    """

    def __init__(
        self, call: Call, policy: BatchPolicy, executor: Executor, observer: BatchObserver, *, batched: bool
    ) -> None:
        self._call, self._policy, self._executor, self._observer = call, policy, executor, observer
        self._max_rows = policy.max_rows if batched else 1
        self._lanes: dict[Shapes | None, Lane] = {}
        self._seconds: dict[Shapes, float] = {}
        self._throughput = Throughput()
        self._wake: asyncio.TimerHandle | None = None
        self.waiting = 0
        self.running = 0

    def submit(self, feeds: Arrays, deadline: float | None = None, behind: float = 0.0) -> asyncio.Future[Arrays]:
        """Return the future of the results; cancelling it gives the request up.

        A request is refused if as many wait as may, or so many that it would not be answered by its deadline.

        feeds: by name, in the order of the inputs. deadline: in seconds of the monotonic clock. behind: for
        how many seconds the event loop has not come to the request, as it may not come to the answer.
        Raises: QueueFullError; CallTimeoutError and what the executable raises, from the future.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Arrays] = loop.create_future()
        if deadline is not None and deadline <= time.monotonic():
            future.set_exception(_too_late())
            return future
        shapes = tuple([array.shape for array in feeds.values()])
        if self._is_quick(shapes):
            self._run_here(feeds, shapes, future)
            return future
        if self._is_refused(deadline, behind):
            raise self._queue_full()
        key, rows = self._lane_of(shapes)
        request = Request(feeds, key, rows, future, deadline)
        if deadline is not None:
            request.timer = loop.call_later(max(0.0, deadline - request.arrived), _expire, request)
        future.add_done_callback(partial(self._remove_request, request))
        self._lanes.setdefault(key, Lane()).add(request)
        self.waiting += 1
        self._pump()
        return future

    def _lane_of(self, shapes: Shapes) -> tuple[Shapes | None, int]:
        """Return what requests have in common that may be joined, and the rows; None for one that is run alone."""
        rows = shapes[0][0] if self._max_rows > 1 else 1
        if self._max_rows == 1 or not 0 < rows < self._max_rows:
            return None, 1
        return tuple([shape[1:] for shape in shapes]), rows

    # --- calls on the event loop --------------------------------------------------------------------------------------
    def _is_quick(self, shapes: Shapes) -> bool:
        idle = not (self.running or self.waiting or self._policy.max_delay)
        return idle and self._seconds.get(shapes, 1.0) < QUICK_SECONDS

    def _run_here(self, feeds: Arrays, shapes: Shapes, future: asyncio.Future[Arrays]) -> None:
        start = time.monotonic()
        try:
            future.set_result(self._call(feeds, None, None))
        except Exception as error:
            future.set_exception(as_ours(error))
        seconds = time.monotonic() - start
        self._learn(shapes, seconds)
        self._observer.record_call((0.0,), _rows(shapes), seconds)

    def _learn(self, shapes: Shapes, seconds: float) -> None:
        if len(self._seconds) >= _MAX_TIMED and shapes not in self._seconds:
            self._seconds.clear()
        self._seconds[shapes] = 0.5 * (self._seconds.get(shapes, seconds) + seconds)

    # --- the queue ----------------------------------------------------------------------------------------------------
    def _pump(self) -> None:
        """Start calls while there are free callers, and requests that need not wait for others."""
        while self.running < self._policy.callers and self._lanes:
            key, lane = min(self._lanes.items(), key=lambda item: item[1].requests[0].arrived)
            ready = next((each for each in self._lanes.items() if self._is_ready(*each)), None)
            if self._is_ready(key, lane):
                ready = key, lane
            if ready is None:
                self._wake_at(lane.requests[0].arrived + self._policy.max_delay)
                return
            key, lane = ready
            taken = lane.take(1 if key is None else self._max_rows)
            if not lane.requests:
                del self._lanes[key]
            self._start(taken)

    def _is_ready(self, key: Shapes | None, lane: Lane) -> bool:
        if key is None or lane.rows >= self._max_rows or self.waiting >= self._policy.max_queue:
            return True  # in the last case nobody could join
        return time.monotonic() >= lane.requests[0].arrived + self._policy.max_delay

    def _wake_at(self, when: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        loop = asyncio.get_running_loop()
        self._wake = loop.call_later(max(0.0, when - time.monotonic()), self._pump)

    def _start(self, taken: Sequence[Request]) -> None:
        self.waiting -= len(taken)
        batch = RunningBatch([request for request in taken if not request.future.done()])
        if not batch.requests:
            return
        for request in batch.requests:
            request.running = batch
        self.running += 1
        self._executor.submit(self._work, batch, asyncio.get_running_loop())

    def _remove_request(self, request: Request, future: asyncio.Future[Arrays]) -> None:
        """Remove a request that nobody waits for any more, and cancel its call where nobody waits for that."""
        if request.timer is not None:
            request.timer.cancel()
        if request.lane is not None:
            request.lane.remove(request)
            self.waiting -= 1
            if not self._lanes[request.key].requests:
                del self._lanes[request.key]
        elif request.running is not None and all(each.future.done() for each in request.running.requests):
            request.running.cancellation.cancel()

    def _is_refused(self, deadline: float | None, behind: float) -> bool:
        if self.waiting >= self._policy.max_queue:
            return True
        if deadline is None or not self.waiting:  # in the latter case it may have become quicker than it was
            return False
        return time.monotonic() + self._throughput.seconds(self.waiting) + behind > deadline

    def _queue_full(self) -> QueueFullError:
        return QueueFullError(
            "too many requests wait for the model",
            retry_after=float(np.ceil(max(1.0, self._throughput.seconds(self.waiting)))),
            expected=f"at most {self._policy.max_queue} that wait, and answers within the time limit",
        )

    # --- calls in threads ---------------------------------------------------------------------------------------------
    def _work(self, batch: RunningBatch, loop: asyncio.AbstractEventLoop) -> None:
        start = time.monotonic()
        outcomes = self._outcomes(batch)
        loop.call_soon_threadsafe(self._finish, batch, outcomes, time.monotonic() - start)

    def _outcomes(self, batch: RunningBatch) -> list[Arrays | KernelyardError]:
        """Return the results or the error of each request."""
        try:
            feeds = join_feeds([request.feeds for request in batch.requests])
            results = self._call(feeds, batch.timeout(), batch.cancellation)
            return list(split(results, [request.rows for request in batch.requests]))
        except (CallTimeoutError, CallCancelledError) as error:
            return [error] * len(batch.requests)
        except Exception as error:
            if len(batch.requests) == 1:
                return [as_ours(error)]
        # One of them is at fault: the others are not to fail with it.
        alone = [RunningBatch([request]) for request in batch.requests]
        for each in alone:
            each.cancellation = batch.cancellation
        return [outcome for each in alone for outcome in self._outcomes(each)]

    def _finish(self, batch: RunningBatch, outcomes: Sequence[Arrays | KernelyardError], seconds: float) -> None:
        self.running -= 1
        self._throughput.record_end(batch.started, len(batch.requests))
        now = time.monotonic()
        for request, outcome in zip(batch.requests, outcomes, strict=True):
            request.running = None  # the two would else be freed by the collector alone, with all their arrays
            if request.future.done():
                continue
            if isinstance(outcome, KernelyardError):
                request.future.set_exception(outcome)
            elif request.deadline is not None and request.deadline <= now:  # its timer is late, too
                request.future.set_exception(_too_late())
            else:
                request.future.set_result(outcome)
        if len(batch.requests) == 1:
            self._learn(tuple([array.shape for array in batch.requests[0].feeds.values()]), seconds)
        waited = [batch.started - request.arrived for request in batch.requests]
        self._observer.record_call(waited, sum(request.rows for request in batch.requests), seconds)
        self._pump()


def join_feeds(feeds: Sequence[Arrays]) -> Arrays:
    """Return feeds as one, along the first axis of every input."""
    if len(feeds) == 1:
        return feeds[0]
    return {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]}


def split(results: Mapping[str, np.ndarray], rows: Sequence[int]) -> list[Arrays]:
    """Return what each request gets of the results of joined feeds: views of them."""
    if len(rows) == 1:
        return [dict(results)]
    ends = np.cumsum(rows).tolist()
    return [
        {name: array[end - count : end] for name, array in results.items()}
        for end, count in zip(ends, rows, strict=True)
    ]


def _rows(shapes: Shapes) -> int:
    return shapes[0][0] if shapes and shapes[0] else 1


def _too_late() -> CallTimeoutError:
    return CallTimeoutError(
        "the request was not answered in time", hint="increase the time limit, or send fewer requests at once"
    )


def _expire(request: Request) -> None:
    if not request.future.done():
        request.future.set_exception(_too_late())
