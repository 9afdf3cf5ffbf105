"""Stopwatch: how long work takes on a GPU, by events of the CUDA driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_float, c_uint, c_void_p

from kernelyard.errors import ExecutionError
from kernelyard_cuda.driver_api import DRIVER

WARM_UP = 3
ROUNDS = 3
CALLS = 10


class Stopwatch:
    """Two events, between which calls are made.

    Raises: OSError without the driver.
    """

    def __init__(self) -> None:
        driver = ctypes.CDLL(DRIVER)
        driver.cuEventCreate.argtypes = (POINTER(c_void_p), c_uint)
        driver.cuEventRecord.argtypes = (c_void_p, c_void_p)
        driver.cuEventSynchronize.argtypes = (c_void_p,)
        driver.cuEventElapsedTime.argtypes = (POINTER(c_float), c_void_p, c_void_p)
        self._driver = driver
        self._start, self._end = self._event(), self._event()

    def _event(self) -> c_void_p:
        event = c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            raise ExecutionError("the CUDA driver failed", where=name, found=status)

    def seconds(self, run: Callable[[int], None], stream: int) -> float:
        """Return the least of some rounds, for one call."""
        for _ in range(WARM_UP):
            run(stream)
        return min(self._round(run, stream) for _ in range(ROUNDS)) / CALLS

    def _round(self, run: Callable[[int], None], stream: int) -> float:
        self._call("cuEventRecord", self._start, stream)
        for _ in range(CALLS):
            run(stream)
        self._call("cuEventRecord", self._end, stream)
        self._call("cuEventSynchronize", self._end)
        milliseconds = c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), self._start, self._end)
        return milliseconds.value / 1e3
