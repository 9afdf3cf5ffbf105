"""Weights of a Winograd convolution: transformed once per process, in panels as the products read them."""

from __future__ import annotations

import math

import numpy as np

from kernelyard.runtime.api import address_of, aligned_bytes
from kernelyard_dnnl.layout import MemoryDescriptor, dense
from kernelyard_dnnl.packing import PackedConstants, copy_constant
from kernelyard_dnnl.values import Value
from kernelyard_llvm.winograd import algorithm
from kernelyard_llvm.winograd.algorithm import WINDOW
from kernelyard_llvm.winograd.choice import FLOAT, pad_to_vectors, panel_width
from kernelyard_llvm.winograd.code import transform_weights

# The dims of weights, filters innermost: (filters, channels, 3, 3), or with planes before the window.
BY_WINDOW = {4: (2, 3, 1, 0), 5: (3, 4, 2, 1, 0)}


def pack_weights(constants: PackedConstants, weight: Value, m: int, lanes: int) -> Value:
    """Return constant weights (filters, channels, 3, 3) as ((m + 2)^2 places, panels, channels, filters of a panel).

    Of weights (filters, channels, planes, 3, 3), the channels of one plane stand after those of the other. A panel has
    `panel_width` vectors, the last one fewer, and zeros behind the last filter. Raises: StatusError.
    """

    if weight.descriptor.strides is None:
        weight = constants.pack(weight, dense(weight.shape, "float32"))

    def make(key: str) -> Value:
        filters, channels = weight.shape[0], _count_summed(weight)
        places, columns = algorithm.size_of_tile(m) ** 2, pad_to_vectors(filters, lanes)
        data = aligned_bytes(FLOAT * places * channels * columns)
        layout = dense((places, channels, columns), "float32")
        panels = constants.fill_constant(weight, layout, data, key, lambda: _transform(weight, m, lanes, data))
        panels.buffer.panels_of = weight, m, lanes
        return panels

    return constants.derive(weight, f"winograd {m} {lanes}", make)


def _count_summed(weight: Value) -> int:
    """Return what is summed for each result, beside the window of a plane."""
    return math.prod(weight.shape[1:-2])


def _transform(weight: Value, m: int, lanes: int, data: np.ndarray) -> None:
    """Write transformed weights to `data`, panel by panel: the filters of one fit in a cache."""
    filters, channels = weight.shape[0], _count_summed(weight)
    columns, width = pad_to_vectors(filters, lanes), panel_width(lanes) * lanes
    scratch = aligned_bytes(FLOAT * WINDOW * WINDOW * channels * width)
    strides = weight.descriptor.strides
    assert strides is not None
    for first in range(0, columns, width):
        count, present = min(width, columns - first), min(width, filters - first)
        shape = (present, *weight.shape[1:])
        part = Value(weight.buffer, MemoryDescriptor(shape, "float32", strides), weight.offset + first * strides[0])
        copy_constant(part, dense(shape, "float32", BY_WINDOW[len(shape)]), scratch)
        panel = address_of(data) + FLOAT * first * channels
        transform_weights(m, lanes)(address_of(scratch), panel, channels, present, 0, count, channels * columns)
