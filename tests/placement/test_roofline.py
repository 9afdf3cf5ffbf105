"""Roofline: what operators cost at sizes that are not known."""

from __future__ import annotations

import numpy as np

from kernelyard.dims import Dim, floordiv, symbol
from kernelyard.ir import Call, FunctionBuilder
from kernelyard.plugins.support.roofline import bytes_of, flops_of

N = symbol("n")


def framed(frames: Dim) -> Call:
    """A sum over the bins of so many frames."""
    b = FunctionBuilder()
    return b.function(b.op("sum", b.input("x", (1, 80, frames)), axes=(1,))).bindings[0].value  # pyright: ignore


def convolution(size: Dim) -> Call:
    b = FunctionBuilder()
    y = b.op("nn.conv1d", b.input("x", (1, 1, size)), np.ones((8, 1, 400), np.float32), strides=(160,))
    return b.function(y).bindings[0].value  # pyright: ignore


def test_symbols_are_64() -> None:
    assert flops_of(framed(N)) == flops_of(framed(64)) > 0
    assert bytes_of(framed(N)) == bytes_of(framed(64))


def test_signals_are_as_long_as_their_frames_need() -> None:
    """64 samples have no frame of 400: the work would cost nothing."""
    assert flops_of(convolution(N)) == flops_of(convolution(1 << 14)) > 0
    assert bytes_of(convolution(N)) == bytes_of(convolution(1 << 14))
    assert flops_of(framed(floordiv(N, 160) - 1)) == flops_of(framed((1 << 14) // 160 - 1)) > 0
