"""Weights of a Winograd convolution: transformed once per process, in panels as the products read them."""

from __future__ import annotations

from kernelyard.runtime.memory import address_of, aligned_bytes
from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.packing import PackedConstants
from kernelyard_dnnl.values import Buffer, Value
from kernelyard_dnnl.winograd import algorithm
from kernelyard_dnnl.winograd.choice import FLOAT, padded
from kernelyard_dnnl.winograd.code import transform_weights
from kernelyard_dnnl.winograd.products import panel_width

BY_WINDOW = (2, 3, 1, 0)  # the dims of weights (filters, channels, 3, 3), filters innermost


def packed_weights(constants: PackedConstants, weight: Value, m: int, lanes: int) -> Value:
    """Constant weights (filters, channels, 3, 3) as ((m + 2)^2 places, panels, channels, filters of a panel).

    A panel has `panel_width` vectors, the last one fewer, and zeros behind the last filter. Raises: StatusError.
    """

    def make(key: str) -> Value:
        filters, channels = weight.shape[:2]
        by_window = constants.make(weight, dense(weight.shape, "float32", BY_WINDOW), 1, key)
        places, columns = algorithm.size_of_tile(m) ** 2, padded(filters, lanes)
        data = aligned_bytes(FLOAT * places * channels * columns)
        width = panel_width(lanes) * lanes
        assert by_window.buffer.constant is not None
        source, place = address_of(by_window.buffer.constant), address_of(data)
        for first in range(0, columns, width):
            count = min(width, columns - first)
            panel = place + FLOAT * first * channels
            transform_weights(m, lanes)(source, panel, channels, filters, first, count, channels * columns)
        return Value(Buffer(data.nbytes, constant=data, key=key), dense((places, channels, columns), "float32"))

    return constants.derived(weight, f"winograd {m} {lanes}", make)
