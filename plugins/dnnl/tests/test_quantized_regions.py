"""Quantized networks: integers from one primitive to the next, in one region and one layout."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.ir import TensorType

SCALE = np.float32(0.04)


def stored(*shape, dtype="uint8"):
    return TensorType(shape, dtype)


def decoded(b, x, scale=SCALE, zero=3):
    return b.op("dequantize", x, np.float32(scale), np.array(zero, x.type.dtype))


def encoded(b, x, scale=SCALE, zero=3, dtype="uint8"):
    return b.op("quantize", x, np.float32(scale), np.array(zero, dtype), dtype=dtype)


# --- on their own -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (1, 3, 6, 5)], ids=str)
def test_conversions_of_what_the_program_is_given(shape, dtype, offloading):
    """Between a tensor from outside and a primitive; of one element they are left to who reads them."""

    def to_integers(b, x):
        return encoded(b, x, dtype=dtype)

    def to_floats(b, x):
        return decoded(b, x)

    if not shape:
        offloading.declined("rank", "dnnl.quantize", to_integers, shape)
        offloading.declined("rank", "dnnl.dequantize", to_floats, stored(*shape, dtype=dtype))
        return
    offloading.taken("dnnl.quantize", "quantize", to_integers, shape)
    offloading.taken("dnnl.dequantize", "dequantize", to_floats, stored(*shape, dtype=dtype))


def test_conversions_beside_generated_kernels_are_theirs(offloading):
    def build(b, x):
        return encoded(b, b.op("floor", x))

    offloading.declined("neighbours", "dnnl.quantize", build, (4, 5))


def test_conversions_to_16_bits_are_declined(offloading):
    def build(b, x):
        return b.op("quantize", x, SCALE, np.int16(3), dtype="int16")

    offloading.declined("dtype", "dnnl.quantize", build, (4, 5))
