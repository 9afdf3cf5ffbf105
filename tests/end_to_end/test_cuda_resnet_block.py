"""A basic block of ResNet on CUDA, with cuDNN and without it: where there is no GPU, on the emulator.

As models have it: convolutions and batch norms, the second with a residual, and one that halves the image and doubles
the channels. NumPy computes in cuDNN's place.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kernelyard as ky
import kernelyard.ops
from kernelyard.dims import symbol
from kernelyard.errors import DeviceError
from kernelyard.ir import FunctionBuilder, IRModule, Var
from kernelyard.testing import assert_offloaded, evaluate

pytest.importorskip("kernelyard_native_cuda", reason="kernelyard-native-cuda is not installed")
pytest.importorskip("kernelyard_cudnn", reason="kernelyard-cudnn is not installed")

TARGET = ky.Target("cuda", arch="sm_90")


@pytest.fixture(scope="module", autouse=True)
def _emulator() -> None:
    try:
        ky.cuda("emulator").require()
    except DeviceError as error:
        pytest.skip(f"{error.message}: {error.hint}")


class Block:
    """Parameters are drawn in the order in which they are asked for."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._rng = np.random.default_rng(5)
        self.b = FunctionBuilder()

    def normed(self, x: Var, channels: int, kernel: int, stride: int) -> Var:
        """A convolution and its batch norm."""
        shape = (channels, x.tensor_type.shape[1], kernel, kernel)
        weight = self._rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:], dtype=np.float64))
        window = {"strides": (stride, stride), "padding": (kernel // 2,) * 4}
        y = self.b.op("nn.conv2d", x, weight.astype(self.dtype), **window)
        gamma, beta, mean, variance = (self._rng.uniform(0.5, 1, channels).astype(self.dtype) for _ in range(4))
        return self.b.op("nn.batch_norm", y, gamma, beta, mean, variance)

    def basic(self, x: Var, channels: int, stride: int = 1) -> Var:
        """Two convolutions around which the input goes."""
        first = self.b.op("nn.relu", self.normed(x, channels, 3, stride))
        second = self.normed(first, channels, 3, 1)
        around = x if stride == 1 else self.normed(x, channels, 1, stride)
        return self.b.op("nn.relu", self.b.op("add", second, around))


def network(dtype: str) -> IRModule:
    block = Block(dtype)
    x = block.b.input("x", (symbol("n"), 8, 12, 12), dtype)
    y = block.basic(block.basic(x, 8), 16, stride=2)
    return IRModule({"main": block.b.function(y)})


def image(dtype: str, count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 8, 12, 12)).astype(dtype)


def run(exe: ky.Executable, x: np.ndarray) -> np.ndarray:
    return np.asarray(ky.VirtualMachine(exe, ky.cuda("emulator"))["main"](x).numpy())


def check(found: np.ndarray, wanted: np.ndarray) -> None:
    """Five convolutions' rounding; cuDNN rounds to float16 once where the reference does after each operator."""
    assert found.dtype == wanted.dtype
    tolerance = 1e-4 if wanted.dtype == np.float32 else 2e-2
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backends", [["cudnn"], []], ids=["with cudnn", "without"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_both_ways_give_what_the_reference_gives(dtype: str, backends: list[str]) -> None:
    module = network(dtype)
    exe = ky.compile(module, target=TARGET, backends=backends, strict=True)
    assert {each.kind for each in exe.modules} <= {*backends, "native-cuda"}
    if backends:
        assert_offloaded(exe, "cudnn", "cudnn.conv2d", count=5)
        assert exe.report.coverage["cudnn"]["flops_fraction"] > 0.98
    for count in (1, 3):
        x = image(dtype, count)
        wanted = evaluate(module, [x])[0]
        check(run(exe, x), wanted)


def test_residual_and_activation_are_in_the_convolution() -> None:
    """In float16, whose images lie channels-last: nothing is left between the convolutions."""
    exe = ky.compile(network("float16"), target=TARGET, backends=["cudnn"], strict=True)
    with_residual = [region for region in exe.report.regions if region.ops.count("add") == 2]
    assert len(with_residual) == 2
    assert all(region.ops[-1] in ("nn.relu", "permute_dims") for region in with_residual)
    elsewhere = [node.op for node in exe.report.nodes if node.backend == "native-cuda"]
    assert set(elsewhere) <= {"permute_dims"}, elsewhere


def test_saved_and_loaded(tmp_path: Path) -> None:
    module, x = network("float32"), image("float32", 2)
    exe = ky.compile(module, target=TARGET, backends=["cudnn"], strict=True)
    exe.save(tmp_path / "block.kyar")
    check(run(ky.load(tmp_path / "block.kyar"), x), evaluate(module, [x])[0])
