"""Calls that an event loop waits for: threads of the process make them, as many at once as it has processors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from kernelyard.runtime.abi.threads import processors
from kernelyard.runtime.execute.call_limit import CallLimit

T = TypeVar("T")


@cache
def _callers() -> ThreadPoolExecutor:
    """Return the threads that call; more calls wait in the order in which they come."""
    # A child process has none of its parent's threads.
    os.register_at_fork(after_in_child=_callers.cache_clear)
    return ThreadPoolExecutor(processors(), "kernelyard")


async def run_async(call: Callable[[CallLimit], T], limit: CallLimit) -> T:
    """Return what `call(limit)` returns, made in another thread.

    Where the task is cancelled, so is the call: it has ended, and writes to no array, before CancelledError goes on.
    """
    future = _callers().submit(call, limit)
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        limit.cancellation.cancel()
        if not future.cancel():
            await asyncio.wait([waiting])
            waiting.exception()  # it was looked at
        raise
