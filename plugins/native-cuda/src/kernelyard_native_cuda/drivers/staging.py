"""Staging: small arrays on their way to a GPU, in memory that it reads by itself, so that nobody waits for it.

Copies from memory that is not page-locked may wait for the GPU.
Source: CUDA Driver API documentation, "API synchronization behavior".
"""

from __future__ import annotations

import ctypes
from threading import Lock
from typing import Any, Protocol

import numpy as np

from kernelyard.runtime.api import address_of

SLOTS = 16
SLOT_NBYTES = 256 << 10


class Driver(Protocol):
    """The CUDA driver, as `Gpu` calls it: its API, and the stream on which work is queued."""

    api: Any

    @property
    def stream(self) -> int: ...

    def call(self, name: str, *args: Any) -> Any: ...


class Staging:
    """Slots of page-locked memory, used in turn; one that the GPU still reads is waited for."""

    def __init__(self, gpu: Driver) -> None:
        self._gpu = gpu
        self._lock = Lock()
        self._start = 0
        self._events: list[object] = []
        self._next = 0

    def upload(self, address: int, array: np.ndarray) -> None:
        """Copy a dense array; it may change once this returns."""
        gpu = self._gpu
        if array.nbytes > SLOT_NBYTES:
            gpu.call("cuMemcpyHtoDAsync", address, address_of(array), array.nbytes, gpu.stream)
            gpu.call("cuStreamSynchronize", gpu.stream)
            return
        with self._lock:
            if not self._events:
                self._prepare()
            slot, self._next = self._next, (self._next + 1) % SLOTS
            place, event = self._start + slot * SLOT_NBYTES, self._events[slot]
            gpu.call("cuEventSynchronize", event)
            ctypes.memmove(place, address_of(array), array.nbytes)
            gpu.call("cuMemcpyHtoDAsync", address, place, array.nbytes, gpu.stream)
            gpu.call("cuEventRecord", event, gpu.stream)

    def _prepare(self) -> None:
        gpu = self._gpu
        self._start = int(gpu.call("cuMemAllocHost", SLOTS * SLOT_NBYTES))
        flag = gpu.api.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._events = [gpu.call("cuEventCreate", flag) for _ in range(SLOTS)]
