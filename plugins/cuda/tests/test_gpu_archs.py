"""Which GPUs are on this machine? The driver's library is asked."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from kernelyard_cuda.driver_api import COMPUTE_CAPABILITY, DRIVER, gpu_archs

NO_DEVICE = 100


@pytest.mark.parametrize(
    ("status", "capabilities", "expected"),
    [
        (0, [(9, 0), (9, 0)], ("sm_90",)),
        (0, [(8, 6), (12, 0)], ("sm_86", "sm_120")),
        (0, [], ()),
        (NO_DEVICE, [], ()),
        (NO_DEVICE, [(9, 0)], ()),
    ],
)
def test_the_driver_names_architectures(
    monkeypatch: pytest.MonkeyPatch, status: int, capabilities: list[tuple[int, int]], expected: tuple[str, ...]
) -> None:
    def put(place: Any, value: int) -> int:
        ctypes.cast(place, ctypes.POINTER(ctypes.c_int))[0] = value
        return 0

    names: list[str] = []
    driver = SimpleNamespace(
        cuInit=lambda flags: status,
        cuDeviceGetCount=lambda place: put(place, len(capabilities)),
        cuDeviceGet=lambda place, number: put(place, 40 + number),
        cuDeviceGetAttribute=lambda place, attribute, device: put(
            place, capabilities[device.value - 40][attribute - COMPUTE_CAPABILITY[0]]
        ),
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: names.append(name) or driver)
    assert gpu_archs.__wrapped__() == expected
    assert names == [DRIVER]


def test_without_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert gpu_archs.__wrapped__() == ()
