"""Estimate what a region with convolutions takes: the sum over its primitives, which hand each other images in caches.

Measured on one core with AVX-512, in ten mobile networks: sums were within 5 % of their times. Generated kernels state
the same of themselves. So a region goes to them whose activations take long as post-ops, whose channels leave vectors
idle, or that gains less than the reorders at its borders take.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.plugins.api import Call, Region, TensorType, bytes_of, composites_of, flops_of, nbytes_of

# Operations per second; of one place, as in squeeze and excitation, the weights are read once.
DIRECT, WINOGRAD, DEPTHWISE, ONE_PLACE = 9.8e10, 2e11, 3.2e10, 4.2e9
# Bytes per second that a pooling, a sum or a resampling reads and writes, and that a pooling does of row-major images,
# which it transposes.
CACHED, TRANSPOSED = 4e10, 1.4e10
# Bytes per second of an image that is reordered to be reshaped.
REORDERED = 1e10
# Seconds for an element of a function that is no arithmetic, as a post-op or by itself.
FUNCTION = 0.5e-9
FUNCTIONS = frozenset(("nn.silu", "nn.gelu", "nn.mish", "nn.elu", "sigmoid", "tanh", "exp"))
CONVOLUTIONS = frozenset(
    (
        *("nn.conv1d", "nn.conv2d", "nn.conv3d"),
        *("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
    )
)
# Winograd's algorithm is for windows of 3 x 3 that move one pixel at a time, over as many channels.
WINDOW, LEAST_CHANNELS = (3, 3), 16
LANES, HALF_LANES = 16, 8
FLOAT_BYTES = 4


def seconds_of_region(region: Region) -> float:
    """Return the seconds of one call on one core, without reorders at the borders."""
    pooling_rate = TRANSPOSED if CONVOLUTIONS.isdisjoint(region.ops) else CACHED
    return sum(_seconds_of_primitive(calls, pooling_rate) for calls in composites_of(region))


def _seconds_of_primitive(calls: Sequence[Call], pooling_rate: float) -> float:
    is_pooling = any("_pool" in call.op_name for call in calls)
    if calls[0].op_name == "reshape":
        return _seconds_of_reshape(calls[0])
    if calls[0].op_name == "permute_dims" and _is_view(calls[0]):
        return 0.0
    moved = max(map(bytes_of, calls)) / (pooling_rate if is_pooling else CACHED)
    elements = sum(nbytes_of(call.tensor_type) for call in calls if call.op_name in FUNCTIONS) / FLOAT_BYTES
    products = [call for call in calls if call.op_name in (*CONVOLUTIONS, "matmul")]
    arithmetic = sum(flops_of(call) / _rate(call) * _fill(call) for call in products)
    return max(arithmetic, moved) + elements * FUNCTION


def _seconds_of_reshape(call: Call) -> float:
    """Return the seconds in which an image is made row-major, or is made of what is: else, it is a view."""
    images = [each for each in (call.args[0].tensor_type, call.tensor_type) if _is_image(each)]
    return len(images) * nbytes_of(call.tensor_type) / REORDERED


def _is_view(call: Call) -> bool:
    """Return True for permutations that put channels last, or back: convolutions have them so in memory."""
    rank, axes = call.tensor_type.rank, tuple(call.attrs["axes"])
    return rank > 2 and axes in ((0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1)))


def _is_image(tensor: TensorType) -> bool:
    """Return True for tensors of several channels and places, which convolutions have channels-last."""
    return tensor.rank > 2 and tensor.shape[1] != 1 and set(tensor.shape[2:]) != {1}


def _rate(call: Call) -> float:
    """Return the operations per second of a product or a convolution."""
    if call.op_name in CONVOLUTIONS and set(call.tensor_type.shape[2:]) == {1}:
        return ONE_PLACE
    groups, weight = call.attrs.get("groups", 1), call.args[1].tensor_type
    if groups != 1:
        return DEPTHWISE if weight.shape[1] == 1 else DIRECT
    is_image = call.op_name in ("nn.conv2d", "nn.conv3d") and weight.shape[-2:] == WINDOW
    if not is_image or {*call.attrs["strides"], *call.attrs["dilation"]} != {1}:
        return DIRECT
    return WINOGRAD if all(isinstance(size, int) and size >= LEAST_CHANNELS for size in weight.shape[:2]) else DIRECT


def _fill(call: Call) -> float:
    """Return how many channels are computed for each that there is: images are channels-last, in whole vectors."""
    channels = call.tensor_type.shape[1] if call.op_name in CONVOLUTIONS else LANES
    if not isinstance(channels, int) or not channels:
        return 1.0
    lanes = LANES if channels > HALF_LANES else HALF_LANES
    return -(-channels // lanes) * lanes / channels
