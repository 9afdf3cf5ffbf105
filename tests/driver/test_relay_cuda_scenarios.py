"""The partition half of the Relay-era test_cudnn.py: which calls are marked, and which are not, why.

The library is a stand-in of NumPy: the same rules, patterns and graphs, and kernels that read them. Rules for single
operators and patterns are used together, as in Relay: composites first, then marks, then regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy_library import Library

import kernelyard as ky
from kernelyard.ir import Call, FunctionBuilder, IRModule, Var, verify
from kernelyard.patterns import Accept, Answer, Decline, FusionPattern, Match, is_op, wildcard
from kernelyard.placement.recorder import Recorder
from kernelyard.testing import assert_allclose, evaluate
from kernelyard.transform import AnnotateTarget, MergeComposite, PartitionGraph, register_op_rule
from kernelyard.transform.single_op_rules import unregister_op_rules

# --- cudnn: rules -----------------------------------------------------------------------------------------------------
FLOATS = ("float16", "float32", "float64")


def rule_of_softmax(call: Call) -> Answer:
    dtype = call.tensor_type.dtype
    return Accept() if dtype in FLOATS else Decline("dtype", f"softmax of {dtype}")


def rule_of_log_softmax(call: Call) -> Answer:
    type_ = call.tensor_type
    if type_.dtype in FLOATS and (type_.rank != 2 or call.attrs["axis"] != 1):
        return Decline("attribute", f"log_softmax over axis {call.attrs['axis']} of rank {type_.rank}; rows alone")
    return rule_of_softmax(call)


def rule_of_conv2d(call: Call) -> Answer:
    top, left, bottom, right = call.attrs["padding"]
    if call.tensor_type.dtype not in FLOATS:
        return Decline("dtype", f"a convolution of {call.tensor_type.dtype}")
    if (top, left) != (bottom, right):
        return Decline("attribute", f"padding {call.attrs['padding']}; it must be the same on both sides")
    return Accept()


def check_conv2d_bias_act(match: Match) -> Answer:
    """Also what TVM leaves out: the convolution's own rule, and that there is one number for each channel."""
    convolution, bias = match.calls[0], match["bias"].tensor_type
    channels = convolution.tensor_type.shape[1]
    if bias.shape not in ((channels, 1, 1), (1, channels, 1, 1)):
        return Decline("operand", f"a bias of shape {bias.shape}; one number for each of {channels} channels")
    return rule_of_conv2d(convolution)


def conv2d_bias_act() -> FusionPattern:
    convolution = is_op("nn.conv2d")(wildcard().capture("x"), wildcard().capture("w"))
    biased = is_op("add")(convolution, wildcard().capture("bias"))
    pattern = biased.optional(lambda y: is_op("nn.relu")(y))

    def attributes(match: Match) -> Mapping[str, Any]:
        has_relu = match.call.op_name == "nn.relu"
        return {"kernel": "conv2d", "arguments": {**match.calls[0].attrs, "relu": has_relu}}

    return FusionPattern("cudnn.conv2d_bias_act", pattern, check_conv2d_bias_act, attributes)


CUDNN = [conv2d_bias_act()]


# --- the flow ---------------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _libraries(install: Any) -> Iterator[None]:
    rules = {"nn.softmax": rule_of_softmax, "nn.log_softmax": rule_of_log_softmax, "nn.conv2d": rule_of_conv2d}
    for op, rule in rules.items():
        register_op_rule(op, "cudnn", rule)
    install(Library("cudnn"))
    yield
    unregister_op_rules("cudnn")


TABLES = {"cudnn": CUDNN}


def partitioned(module: IRModule, library: str) -> tuple[IRModule, Recorder]:
    """partition_for_cudnn."""
    recorder = Recorder()
    for step in (MergeComposite(TABLES[library], recorder), AnnotateTarget(library, recorder), PartitionGraph()):
        module = verify(step(module))
    return module, recorder


def feeds_of(module: IRModule) -> list[np.ndarray]:
    rng = np.random.default_rng(42)
    types = [param.tensor_type for param in module["main"].params]  # pyright: ignore[reportAttributeAccessIssue]
    return [
        rng.integers(0, 32, t.shape).astype(np.int8) if t.dtype == "int8" else rng.random(t.shape).astype(t.dtype)
        for t in types
    ]


def check(library: str, b: FunctionBuilder, result: Var) -> None:
    """Everything is in one region of the library, and gives what the reference gives."""
    module = verify(IRModule({"main": b.function(result)}))
    after, _ = partitioned(module, library)
    assert [f.attrs["Codegen"] for f in after.graph_functions().values() if "Codegen" in f.attrs] == [library]
    exe = ky.compile(after, backends=[library], strict=True)
    assert {node.backend for node in exe.report.nodes} == {library}, str(exe.report)
    feeds = feeds_of(module)
    assert_allclose(exe(*feeds), evaluate(module, feeds)[0])


def declined(library: str, b: FunctionBuilder, result: Var, rest_is_taken: bool = False) -> list[tuple[str, str]]:
    """Codes and messages of a program that the library does not run as a whole, which is right all the same.

    rest_is_taken: it runs a part of it, as that stands without what was declined.
    """
    module = verify(IRModule({"main": b.function(result)}))
    after, recorder = partitioned(module, library)
    exe = ky.compile(after, backends=[library], strict=True)
    taken = [node.backend == library for node in exe.report.nodes]
    assert any(taken) == rest_is_taken
    assert not all(taken)
    feeds = feeds_of(module)
    assert_allclose(exe(*feeds), evaluate(module, feeds)[0])
    return [(each.code, each.message) for each in recorder.declined_matches()]


# --- test_cudnn.py ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((200,), 0), ((13, 27), 0), ((44, 12, 67), 1), ((1, 16, 16, 8), 2), ((2, 4, 6, 8, 10), 3)],
    ids=str,
)
def test_relay_cudnn_softmax(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    b = FunctionBuilder()
    check("cudnn", b, b.op("nn.softmax", b.input("x", shape, dtype), axis=axis))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(32, 16), (13, 27)], ids=str)
def test_relay_cudnn_log_softmax(shape: tuple[int, ...], dtype: str) -> None:
    b = FunctionBuilder()
    check("cudnn", b, b.op("nn.log_softmax", b.input("x", shape, dtype), axis=1))


@pytest.mark.parametrize(("shape", "axis"), [((13, 27), 0), ((2, 3, 4), 2)], ids=str)
def test_log_softmax_of_rows_alone(shape: tuple[int, ...], axis: int) -> None:
    b = FunctionBuilder()
    reasons = declined("cudnn", b, b.op("nn.log_softmax", b.input("x", shape), axis=axis))
    assert reasons == [("attribute", f"log_softmax over axis {axis} of rank {len(shape)}; rows alone")]


IMAGES = [((1, 8, 16, 20), 16, 1), ((10, 16, 17, 19), 8, 4)]
KERNEL_SIZES = [((1, 1), (3, 1, 3, 1)), ((3, 3), (1, 2, 1, 2)), ((7, 2), (0, 0, 0, 0))]
STEPS = [((1, 1), (1, 1), "float32"), ((2, 1), (2, 2), "float16"), ((3, 3), (1, 2), "float64")]


def conv2d(b: FunctionBuilder, image: Any, kernel: Any, steps: Any, padding: Any = None) -> Var:
    (shape, channels, groups), (size, around), (strides, dilation, dtype) = image, kernel, steps
    x = b.input("data", shape, dtype)
    w = b.input("weight", (channels, shape[1] // groups, *size), dtype)
    window = {"strides": strides, "dilation": dilation, "groups": groups, "padding": padding or around}
    return b.op("nn.conv2d", x, w, **window)


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("kernel", KERNEL_SIZES, ids=str)
@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_relay_cudnn_conv2d(image: Any, kernel: Any, steps: Any) -> None:
    b = FunctionBuilder()
    check("cudnn", b, conv2d(b, image, kernel, steps))


@pytest.mark.parametrize("activation", [True, False])
@pytest.mark.parametrize(("kernel", "steps"), list(zip(KERNEL_SIZES, STEPS, strict=True)), ids=str)
@pytest.mark.parametrize("image", IMAGES, ids=str)
def test_relay_cudnn_conv2d_bias_act(image: Any, kernel: Any, steps: Any, activation: bool) -> None:
    b = FunctionBuilder()
    y = conv2d(b, image, kernel, steps)
    y = b.op("add", y, b.input("bias", (image[1], 1, 1), steps[2]))
    check("cudnn", b, b.op("nn.relu", y) if activation else y)


def test_convolutions_that_cudnn_does_not_take() -> None:
    """With a bias as without: TVM asks nothing of a convolution that has one."""
    b = FunctionBuilder()
    y = conv2d(b, IMAGES[0], KERNEL_SIZES[1], STEPS[0], padding=(0, 1, 1, 1))
    message = "padding (0, 1, 1, 1); it must be the same on both sides"
    assert declined("cudnn", b, y) == [("attribute", message)]
    b = FunctionBuilder()
    y = conv2d(b, IMAGES[0], KERNEL_SIZES[1], STEPS[0], padding=(0, 1, 1, 1))
    y = b.op("add", y, b.input("bias", (16, 1, 1)))
    assert set(declined("cudnn", b, y)) == {("attribute", message)}


def test_what_is_no_bias_leaves_the_convolution_to_the_rule() -> None:
    b = FunctionBuilder()
    y = b.op("add", conv2d(b, IMAGES[0], KERNEL_SIZES[2], STEPS[0]), b.input("row", (19,)))
    after, recorder = partitioned(verify(IRModule({"main": b.function(y)})), "cudnn")
    (reason,) = recorder.declined_matches()
    assert (reason.pattern, reason.code) == ("cudnn.conv2d_bias_act", "operand")
    exe = ky.compile(after, backends=["cudnn"], strict=True)
    assert [(node.op, node.backend == "cudnn") for node in exe.report.nodes] == [("nn.conv2d", True), ("add", False)]


SCENARIOS = {
    "test_cudnn: relay_cudnn_softmax": test_relay_cudnn_softmax,
    "test_cudnn: relay_cudnn_log_softmax": test_relay_cudnn_log_softmax,
    "test_cudnn: relay_cudnn_conv2d": test_relay_cudnn_conv2d,
    "test_cudnn: relay_cudnn_conv2d_bias_act": test_relay_cudnn_conv2d_bias_act,
}
