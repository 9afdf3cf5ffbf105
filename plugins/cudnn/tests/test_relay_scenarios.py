"""The scenarios of convolutions in the Relay-era test_cudnn.py, by name: a rule of single operators and patterns together.

Composites first, then marks, then regions, as there; NumPy computes in cuDNN's place, on the emulator. What cuDNN's graphs
are not made for here, float64, is declined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.ir import FunctionBuilder, IRModule, Var, verify
from kernelyard.patterns.op_rules import register_op_rule, unregister_op_rules
from kernelyard.placement.recorder import Recorder
from kernelyard.testing import assert_allclose, evaluate
from kernelyard_cudnn.backend import CudnnBackend
from kernelyard_cudnn.checks import Checks
from kernelyard_tvm_compat.annotate_target import AnnotateTarget
from kernelyard_tvm_compat.merge_composite import MergeComposite
from kernelyard_tvm_compat.partition_graph import PartitionGraph

from .conftest import H200, feeds_of

IMAGES = [((1, 8, 16, 20), 16, 1), ((10, 16, 17, 19), 8, 4)]
KERNELS = [((1, 1), (3, 1, 3, 1)), ((3, 3), (1, 2, 1, 2)), ((7, 2), (0, 0, 0, 0))]
STEPS = [((1, 1), (1, 1), "float32"), ((2, 1), (2, 2), "float16"), ((3, 3), (1, 2), "float64")]


@pytest.fixture(autouse=True)
def _rule() -> Iterator[None]:
    register_op_rule("nn.conv2d", "cudnn", Checks(H200).call)
    yield
    unregister_op_rules("cudnn")


def partitioned(module: IRModule) -> tuple[IRModule, Recorder]:
    """partition_for_cudnn, as Relay has it."""
    recorder = Recorder()
    for step in (
        MergeComposite(CudnnBackend().patterns(H200), recorder),
        AnnotateTarget("cudnn", recorder),
        PartitionGraph(),
    ):
        module = verify(step(module))
    return module, recorder


def run(machine: Any, b: FunctionBuilder, result: Var) -> tuple[ky.Executable, list[tuple[str, str]]]:
    """A program that is right, and the codes and messages of what was declined."""
    module = verify(IRModule({"main": b.function(result)}))
    after, recorder = partitioned(module)
    exe = ky.compile(after, target=H200, backends=["cudnn"], strict=True, options={"cudnn": {"layout": "first"}})
    feeds = feeds_of(module)
    assert_allclose(np.asarray(machine(exe)(*feeds).numpy()), evaluate(module, feeds)[0])
    return exe, [(each.code, each.message) for each in recorder.list_declined_matches()]


def conv2d(b: FunctionBuilder, image: Any, kernel: Any, steps: Any, padding: Any = None) -> Var:
    (shape, channels, groups), (size, around), (strides, dilation, dtype) = image, kernel, steps
    x = b.input("data", shape, dtype)
    w = b.input("weight", (channels, shape[1] // groups, *size), dtype)
    window = {"strides": strides, "dilation": dilation, "groups": groups, "padding": padding or around}
    return b.op("nn.conv2d", x, w, **window)


def check(machine: Any, dtype: str, b: FunctionBuilder, result: Var) -> None:
    exe, reasons = run(machine, b, result)
    backends = {node.backend for node in exe.report.nodes}
    if dtype == "float64":
        assert backends == {"native-cuda"}
        assert {code for code, _ in reasons} == {"dtype"}
    else:
        assert backends == {"cudnn"}, str(exe.report)
        assert len(exe.modules[0].symbols()) == 1


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_relay_cudnn_conv2d(machine: Any, image: Any, kernel: Any, steps: Any) -> None:
    b = FunctionBuilder()
    check(machine, steps[2], b, conv2d(b, image, kernel, steps))


@pytest.mark.parametrize("activation", [True, False])
@pytest.mark.parametrize(("kernel", "steps"), list(zip(KERNELS, STEPS, strict=True)), ids=str)
@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_relay_cudnn_conv2d_bias_act(machine: Any, image: Any, kernel: Any, steps: Any, activation: bool) -> None:
    b = FunctionBuilder()
    y = b.op("add", conv2d(b, image, kernel, steps), b.input("bias", (image[1], 1, 1), steps[2]))
    check(machine, steps[2], b, b.op("nn.relu", y) if activation else y)


@pytest.mark.parametrize("with_bias", [False, True])
def test_convolutions_that_cudnn_does_not_take(machine: Any, with_bias: bool) -> None:
    """With a bias as without: TVM asks nothing of a convolution that has one."""
    b = FunctionBuilder()
    y = conv2d(b, IMAGES[0], KERNELS[1], STEPS[0], padding=(0, 1, 1, 1))
    y = b.op("add", y, b.input("bias", (16, 1, 1))) if with_bias else y
    exe, reasons = run(machine, b, y)
    assert {node.backend for node in exe.report.nodes} == {"native-cuda"}
    assert set(reasons) == {("attribute", "padding (0, 1, 1, 1); cuDNN's is the same on both sides")}


def test_what_is_no_bias_leaves_the_convolution_to_the_rule(machine: Any) -> None:
    b = FunctionBuilder()
    y = b.op("add", conv2d(b, IMAGES[0], KERNELS[2], STEPS[0]), b.input("row", (19,)))
    exe, reasons = run(machine, b, y)
    assert [(node.op, node.backend) for node in exe.report.nodes] == [("nn.conv2d", "cudnn"), ("add", "native-cuda")]
    assert {code for code, _ in reasons} == {"layout"}


SCENARIOS = {
    "test_cudnn: relay_cudnn_conv2d": test_relay_cudnn_conv2d,
    "test_cudnn: relay_cudnn_conv2d_bias_act": test_relay_cudnn_conv2d_bias_act,
}
