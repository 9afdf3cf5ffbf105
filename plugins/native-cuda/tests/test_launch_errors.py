"""Kernels that fail on a GPU are named with their grid; what is collected in a capture is freed though it fails."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.errors import ExecutionError
from kernelyard.runtime.device.array import DeviceArray
from kernelyard_cuda.driver_api import Argument, Grid, Image, Launch
from kernelyard_native_cuda.drivers.gpu import SYNC_VARIABLE, Gpu

from .test_gpu import RecordedApi

ILLEGAL_ADDRESS = 700
NAMED = "kernel<<<(7, 2, 1), (128, 1, 1), 64>>>"


class FaultyApi(RecordedApi):
    """A GPU whose kernels read where they may not, which the next wait gives."""

    def _answer(self, name, args):
        if name == "cuStreamSynchronize" and "cuLaunchKernel" in self.names():
            return (ILLEGAL_ADDRESS, None)
        return super()._answer(name, args)


def prepared(gpu: Gpu) -> Launch:
    grid = Grid((7, 2, 1), (128, 1, 1), 64)
    kernels = gpu.load(Image("", ("kernel",), {"sm_90": b"code"}))
    return kernels.prepare("kernel", grid, [Argument(1, 64), Argument(2, 64), Argument(0)])


def test_a_refused_launch_is_named():
    api = RecordedApi()
    launch = prepared(Gpu(api, 0))
    api.fails.add("cuLaunchKernel")
    with pytest.raises(ExecutionError, match="CAPTURE_UNSUPPORTED") as caught:
        launch()
    assert caught.value.where == NAMED
    assert "cuLaunchKernel" in str(caught.value.found)


def test_a_fault_that_is_noticed_later_says_how_to_find_the_kernel(monkeypatch):
    monkeypatch.delenv(SYNC_VARIABLE, raising=False)
    gpu = Gpu(FaultyApi(), 0)
    prepared(gpu)()
    with pytest.raises(ExecutionError, match="700") as caught:
        gpu.synchronize()
    assert f"{SYNC_VARIABLE}=1" in str(caught.value.hint)


def test_waiting_for_each_launch_names_the_kernel_and_captures_nothing(monkeypatch):
    monkeypatch.setenv(SYNC_VARIABLE, "1")
    gpu = Gpu(FaultyApi(), 0)
    launch = prepared(gpu)
    assert gpu.capture(launch) is None
    assert "cuLaunchKernel" not in gpu.api.names()
    with pytest.raises(ExecutionError, match="700") as caught:
        launch()
    assert caught.value.where == NAMED


def test_what_is_collected_in_a_failed_capture_is_freed():
    api = RecordedApi()
    gpu = Gpu(api, 0)
    held = [DeviceArray.empty(gpu, (4,), np.dtype(np.float32))]
    address = held[0].address

    def run():
        held.clear()
        raise ExecutionError("this cannot be captured")

    with pytest.raises(ExecutionError, match="cannot be captured"):
        gpu.capture(run)
    assert address not in api.held
    assert api.names().index("cuMemFreeAsync") > api.names().index("cuStreamEndCapture")
