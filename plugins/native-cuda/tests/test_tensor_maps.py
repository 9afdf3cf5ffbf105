"""Tensor maps by the real cuda-bindings on the late driver: made at bind, and again where a tensor lies elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.errors import ExecutionError
from kernelyard.ir import FunctionBuilder, IRModule
from kernelyard.runtime.device.array import DeviceArray
from kernelyard.runtime.device.driver import DeviceMemory
from kernelyard_cuda.driver_api import Argument, TensorMap
from kernelyard_native_cuda.drivers.tensor_maps import EncodedMap

from . import late_driver
from .test_rules import random

pytestmark = pytest.mark.usefixtures("nothing_goes_wrong")


@pytest.fixture(scope="module")
def step(gpu, target) -> Callable[..., Any]:
    """`relu(x @ w) @ w`, a product of products, in float16."""
    b = FunctionBuilder()
    x, w = b.input("x", (72, 64), "float16"), b.input("w", (64, 64), "float16")
    y = b.op("matmul", b.op("nn.relu", b.op("matmul", x, w)), w)
    exe = ky.compile(
        IRModule({"main": b.function(y)}), target=target, backends=[], options={"native-cuda": {"wgmma": True}}
    )
    assert "warp groups" in "".join(module.image.source for module in _modules(exe))
    return ky.VirtualMachine(exe, ky.cuda(0))["main"]


def _modules(exe: Any) -> list[Any]:
    return [module for module in exe.modules if hasattr(module, "image")]


def numbers(*shape: int) -> np.ndarray:
    return (random(*shape) / 4).astype(np.float16)


def wanted_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    x, w = x.astype(np.float32), w.astype(np.float32)
    return np.maximum(x @ w, 0).astype(np.float16).astype(np.float32) @ w


def test_programs_run_and_replay_where_their_tensors_lie(gpu, step):
    w = numbers(64, 64)
    held = DeviceArray.of(gpu, w)
    for _ in range(3):
        feeds = [numbers(72, 64) for _ in range(4)]  # each at a place of its own
        arrays = [DeviceArray.of(gpu, x) for x in feeds]
        found = [step(x, held) for x in arrays]
        for x, y in zip(feeds, found, strict=True):
            np.testing.assert_allclose(y.numpy(), wanted_of(x, w), rtol=4e-3, atol=4e-3)
    maps, launches = late_driver.calls("cuTensorMapEncodeTiled"), late_driver.calls("cuLaunchKernel")
    for _ in range(4):
        step(arrays[0], held)
    assert late_driver.calls("cuLaunchKernel") == launches  # a graph
    assert late_driver.calls("cuTensorMapEncodeTiled") - maps <= 4


@pytest.mark.parametrize(
    ("wrong", "offset"),
    [({}, 8), ({"strides": (120,)}, 0), ({"sizes": (64, 0)}, 0), ({"box": (128, 64)}, 0), ({"box": (64, 512)}, 0)],
)
def test_what_bulk_copies_cannot_read_is_an_error_that_names_the_call(gpu, wrong, offset):
    memory = DeviceMemory(gpu, 1 << 14)
    given = {"sizes": (64, 64), "strides": (128,), "box": (64, 64), **wrong}
    map_ = TensorMap(Argument(memory.address, 1 << 14), "float16", **given)
    with pytest.raises(ExecutionError, match="cuTensorMapEncodeTiled"):
        EncodedMap(gpu, map_, memory.address + offset)
