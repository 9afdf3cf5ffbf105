"""Is there a GPU on this machine? The driver's library is asked."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from kernelyard_cuda.driver_api import DRIVER, gpu_is_here

NO_DEVICE = 100


@pytest.mark.parametrize(
    ("status", "devices", "expected"), [(0, 2, True), (0, 0, False), (NO_DEVICE, 0, False), (NO_DEVICE, 2, False)]
)
def test_the_driver_counts_gpus(monkeypatch: pytest.MonkeyPatch, status: int, devices: int, expected: bool) -> None:
    def count(place: Any) -> int:
        ctypes.cast(place, ctypes.POINTER(ctypes.c_int))[0] = devices
        return 0

    names: list[str] = []
    driver = SimpleNamespace(cuInit=lambda flags: status, cuDeviceGetCount=count)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: names.append(name) or driver)
    assert gpu_is_here.__wrapped__() == expected
    assert names == [DRIVER]


def test_without_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not gpu_is_here.__wrapped__()
