"""Long sequences with wide padding: the inside and both ends are primitives of their own, and the numbers are the same."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard as ky
from kernelyard.dims import symbol
from kernelyard.errors import KernelyardError
from kernelyard.ir import FunctionBuilder, IRModule, TensorType
from kernelyard.testing import assert_allclose
from kernelyard_dnnl.primitives.padded_sequences import LONG

CHANNELS, FILTERS = 12, 20


def numbers(*shape):
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def convolved(x, weight, dilation, padding):
    """Each tap reads the padded data from its place on."""
    padded = np.pad(x, ((0, 0), (0, 0), padding)).astype(np.float64)
    length = padded.shape[2] - (weight.shape[2] - 1) * dilation
    taps = (np.einsum("ncl,fc->nfl", padded[:, :, tap * dilation :][:, :, :length], weight[:, :, tap].astype(np.float64))
            for tap in range(weight.shape[2]))  # fmt: skip
    return sum(taps).astype(np.float32)


def convolution(b, x, length, weight, dilation, padding, **others):
    """A conv node with a bias and an activation."""
    made = length + sum(padding) - (weight.shape[2] - 1) * dilation
    post_ops = others.pop("post_ops", [{"kind": "eltwise", "algorithm": "relu"}])
    operands = {"data": x, "weight": b.constant(weight), "bias": b.constant(numbers(weight.shape[0])), **others}
    return b.kernel(
        "conv", (1, weight.shape[0], made), operands, rank=1, strides=(1,), padding_begin=(padding[0],),
        padding_end=(padding[1],), dilation=(dilation,), groups=1, post_ops=post_ops,
    )  # fmt: skip


def parts(ran):
    return sum(label.startswith("conv") for label, _ in ran)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("taps", "dilation", "padding", "expected"),
    [
        (3, 3, (3, 3), 3),
        (3, 3, (2, 4), 3),
        (2, 8, (8, 0), 2),
        (2, 16, (0, 16), 2),
        (7, 5, (15, 15), 3),
        (2, 1, (1, 1), 3),
        (3, 2, (9, 5), 3),
        (3, 1, (1, 1), 1),
        (5, 2, (2, 2), 1),
    ],
)
def test_each_part_by_itself(taps, dilation, padding, expected, threads, builder):
    x, weight = numbers(1, CHANNELS, LONG + 7), numbers(FILTERS, CHANNELS, taps)
    y = convolution(builder, builder.input(x.shape), x.shape[2], weight, dilation, padding)
    (actual,), ran = builder.run([y], x, threads=threads)
    assert parts(ran) == expected
    assert_allclose(actual, (convolved(x, weight, dilation, padding) + numbers(FILTERS)[:, None]).clip(0))


def test_short_sequences_stay_whole(builder):
    x, weight = numbers(1, CHANNELS, LONG - 1), numbers(FILTERS, CHANNELS, 3)
    y = convolution(builder, builder.input(x.shape), x.shape[2], weight, 4, (4, 4))
    _, ran = builder.run([y], x)
    assert parts(ran) == 1


@pytest.mark.parametrize("made", [10, 4 * LONG])
def test_a_length_that_does_not_follow_is_refused(made, builder):
    """As a damaged file may have it: nothing is written outside of the result."""
    operands = {"data": builder.input((1, CHANNELS, LONG)), "weight": builder.constant(numbers(FILTERS, CHANNELS, 3))}
    y = builder.kernel(
        "conv", (1, FILTERS, made), operands, rank=1, strides=(1,), padding_begin=(4,), padding_end=(4,), dilation=(4,),
        groups=1, post_ops=[],
    )  # fmt: skip
    with pytest.raises(KernelyardError):
        builder.run([y], numbers(1, CHANNELS, LONG))


def test_what_is_added_to_the_whole_keeps_it_whole(builder):
    x, weight, more = numbers(1, CHANNELS, LONG), numbers(FILTERS, CHANNELS, 3), numbers(1, FILTERS, LONG)
    data, added = builder.input(x.shape), builder.input(more.shape)
    post_ops = [{"kind": "sum", "role": "post0"}]
    y = convolution(builder, data, LONG, weight, 4, (4, 4), post_ops=post_ops, post0=added)
    (actual,), ran = builder.run([y], x, more)
    assert parts(ran) == 1
    assert_allclose(actual, convolved(x, weight, 4, (4, 4)) + numbers(FILTERS)[:, None] + more)


@pytest.mark.parametrize("codegen", ["json", "c"])
def test_a_stack_of_dilated_convolutions(codegen):
    """From operators, each twice as wide as that before; as C, with a known length."""
    length = LONG if codegen == "c" else symbol("length")
    b = FunctionBuilder()
    y = b.parameter(TensorType((1, CHANNELS, length), "float32"), "x")
    for dilation in (1, 4, 16):
        y = b.op(
            "nn.conv1d", y, numbers(CHANNELS, CHANNELS, 3) / 4, strides=(1,), padding=(2 * dilation, 0),
            dilation=(dilation,), groups=1,
        )  # fmt: skip
        y = b.op("nn.relu", b.op("add", y, numbers(1, CHANNELS, 1)))
    module = IRModule({"main": b.function(y)})
    exe = ky.compile(module, backends=["dnnl"], options={"dnnl": {"codegen": codegen}})
    assert {node.backend for node in exe.report.nodes} == {"dnnl"}
    for length in (LONG,) if codegen == "c" else (LONG, 40, 3 * LONG + 1, 5):
        x = numbers(1, CHANNELS, length)
        assert_allclose(exe(x), ky.compile(module, backends=[])(x).numpy())
