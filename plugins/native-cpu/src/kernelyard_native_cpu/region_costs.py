"""Estimate what a region with convolutions takes as generated kernels: the sum over the groups of its operators.

Measured on one core with AVX-512, in ten mobile networks, and 7 % more: a library keeps what takes either as long. What
differs with AVX2, in a hundred operators and small networks beside oneDNN, is in `Rates`.
Images are read and written as they are, so that nothing is reordered at the borders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kernelyard import dims
from kernelyard.plugins.api import Call, Region, bytes_of, composites_of, flops_of, nbytes_of

# Operations per second; of few channels: sums that a window makes long, windows that move by one, all others; of one
# place, the weights are read once.
DIRECT, LONG_SUMS, WINDOWS_OF_FEW, FEW_CHANNELS = 8.5e10, 8.8e10, 7.8e10, 6.5e10
DEPTHWISE, TRANSPOSED, ONE_PLACE = 4e10, 5e10, 1e10
MOST_CHANNELS, LONG = 32, 128


class Rates(NamedTuple):
    """What depends on the length of vectors.

    lanes: floats of a vector. Operations per second: dense_sums of long windows that move by one; strided of windows
    with strides over few channels; transposed of convolutions along one axis, whose sums are long, or are not.
    share: the part of all rates that is reached beside a library.
    """

    lanes: int
    dense_sums: float
    strided: float
    transposed: tuple[float, float]
    share: float


AVX512 = Rates(16, LONG_SUMS, FEW_CHANNELS, (LONG_SUMS, FEW_CHANNELS), share=1.0)
# Beside oneDNN, strided windows over 3 channels took 1.3 to 1.5 times as long, convolutions along one axis that are
# transposed 1.1 to 3 times, depthwise ones of images that the second-level cache does not hold, and products of 49
# places, 1.3 to 1.9 times: networks that seemed 1 to 8 % faster took 1.05 to 1.3 times as long.
AVX2 = Rates(8, 7e10, 3.8e10, (TRANSPOSED, TRANSPOSED), share=0.9)
# Bytes per second of a pooling or a resampling, of what is fused with its neighbours, and of a permutation, which these
# read in strides.
WINDOWS, FUSED, PERMUTED = 2e10, 4e10, 1e10
# Seconds for an element of a function that is no arithmetic.
FUNCTIONS: Mapping[str, float] = {
    **dict.fromkeys(("nn.silu", "nn.gelu", "nn.mish", "tanh", "exp"), 0.2e-9),
    **dict.fromkeys(("sigmoid", "nn.elu"), 0.45e-9),
}
CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
TRANSPOSED_CONVOLUTIONS = tuple(f"{name}_transpose" for name in CONVOLUTIONS)
PRODUCTS = frozenset(("matmul", *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS))
UNFUSED = frozenset(
    (
        *("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
        *("nn.batch_norm", "nn.instance_norm", "image.resize"),
    )
)
# What makes a region one of images, whose costs are stated here.
HEAVY = PRODUCTS - {"matmul"} | UNFUSED
FLOAT_BYTES = 4


def seconds_of_region(region: Region, rates: Rates) -> float:
    """Return the seconds of one call on one core."""
    return sum(_seconds_of_kernel(calls, rates) for calls in composites_of(region)) / rates.share


def _seconds_of_kernel(calls: Sequence[Call], rates: Rates) -> float:
    if calls[0].op_name == "reshape":  # a view
        return 0.0
    if calls[0].op_name == "permute_dims":
        return bytes_of(calls[0]) / PERMUTED
    is_fused = UNFUSED.isdisjoint(call.op_name for call in calls)
    moved = max(map(bytes_of, calls)) / (FUSED if is_fused else WINDOWS)
    arithmetic = sum(flops_of(call) / _rate(call, rates) for call in calls if call.op_name in PRODUCTS)
    functions = sum(FUNCTIONS.get(call.op_name, 0.0) * nbytes_of(call.tensor_type) / FLOAT_BYTES for call in calls)
    return max(arithmetic, moved) + functions


def _rate(call: Call, rates: Rates) -> float:
    """Return the operations per second of a product or a convolution."""
    if call.op_name in TRANSPOSED_CONVOLUTIONS:
        return _estimate_transposed_rate(call, rates)
    if call.op_name not in CONVOLUTIONS:
        return DIRECT
    if set(call.tensor_type.shape[2:]) == {1}:
        return ONE_PLACE
    channels, *window = call.args[1].tensor_type.shape[1:]
    if call.attrs["groups"] != 1 and channels == 1:
        return DEPTHWISE * _fill(call, rates.lanes)
    summed, is_strided = dims.product((channels, *window)), set(call.attrs["strides"]) != {1}
    if isinstance(summed, int) and summed >= LONG and set(window) != {1}:
        return LONG_SUMS if is_strided else rates.dense_sums
    if not isinstance(channels, int) or channels >= MOST_CHANNELS:
        return DIRECT
    if set(window) == {1}:
        return FEW_CHANNELS
    return rates.strided if is_strided else WINDOWS_OF_FEW


def _estimate_transposed_rate(call: Call, rates: Rates) -> float:
    """Return the operations per second of a transposed convolution: along one axis it is one for each step of a stride,
    and with AVX-512 these took 0.98 of oneDNN's time in the geometric mean of eight shapes, with its reorders."""
    channels, _, *window = call.args[1].tensor_type.shape
    if len(window) != 1:
        return TRANSPOSED
    summed = dims.product((channels, *window))
    is_long = isinstance(summed, int) and summed >= LONG * call.attrs["groups"] * call.attrs["strides"][0]
    return rates.transposed[0 if is_long else 1]


def _fill(call: Call, lanes: int) -> float:
    """Return the part of a row's vectors that a depthwise convolution fills: its rows end in part of one."""
    width = call.tensor_type.shape[-1]
    return width / (width + lanes) if isinstance(width, int) else 1.0
