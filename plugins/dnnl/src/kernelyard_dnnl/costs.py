"""Estimate the cost of oneDNN's primitives: the roofline over the efficiency that was measured (benchmarks/kernels.py).

A library's primitive reads its operands from memory and writes its result there. That is next to nothing beside a
convolution; where products of sequences, norms and softmax follow each other, it is a part of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import (
    Call,
    Constant,
    Cost,
    Match,
    Region,
    TensorType,
    composites_of,
    operands,
    roofline_seconds,
)
from kernelyard_dnnl.primitives.integer_product import can_multiply_integers
from kernelyard_dnnl.processor import has_wide_vectors
from kernelyard_dnnl.region_costs import LANES, seconds_of_region

DTYPE = "float32"
# Of whole regions, these keep their neighbours in blocked layouts.
HEAVY = frozenset(
    (
        *("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
        *("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
        *("nn.batch_norm", "nn.instance_norm", "image.resize"),
    )
)
# A product of few rows takes as long as its matrix takes to be read.
MOST_ROWS = 8
LEAST_BYTES = 1 << 20
# Of convolutions along one axis with strides: the filters, and places enough to read them for.
MOST_BYTES, MANY_PLACES = 1 << 20, 512
# Of gates over the channels of an image: the channels.
MOST_GATES = 1 << 12
# Of convolutions in groups: the channels of a group of images, and the products of a sum along one axis or three.
MOST_CHANNELS, MOST_PRODUCTS = 4, 1 << 10
MOST_FILTERS, MOST_TRANSPOSED_FILTERS = 6, 8
# Of convolutions of images with filters that fill half of a vector: channels and the window that make it matter.
HALF_A_VECTOR, HALF_VECTOR_CHANNELS, LARGE_WINDOW = 8, 16, 25
# Of convolutions of a single channel: the window along its one axis.
WIDE = 16
# A batch, places and features: of more axes are images, too.
RANK_OF_SEQUENCES = 3
RANK_OF_IMAGES = 4


class Efficiency(NamedTuple):
    """The part of the roofline that a primitive reaches, and why."""

    share: float
    reason: str = ""


USUAL = Efficiency(0.85)
FEW_ROWS = Efficiency(0.55, "a matmul of few rows with a large constant matrix is read at half of the bandwidth")
SEQUENCES = Efficiency(0.75, "a product, softmax or norm of sequences hands its result over through memory")
QUANTIZED_SEQUENCES = Efficiency(0.7, "quantized sequences go through memory between primitives")
QUANTIZED_IMAGES = Efficiency(0.45, "generated kernels multiply the integers of images, and quantize between them")
ONE_AXIS = Efficiency(0.6, "a 1-D convolution is computed as one of images that are one element high")
FEW_CHANNELS = Efficiency(0.3, "oneDNN has no code of its own for groups of so few channels")
UNEVEN_GROUPS = Efficiency(0.6, "groups along one axis with strides, or whose filters fill no vectors, take longer")
FEW_FILTERS = Efficiency(0.4, "a convolution computes 8 filters at least, and there are fewer")
HALF_VECTORS = Efficiency(0.45, "so few filters fill half of oneDNN's vectors, and the window is large")
ONE_CHANNEL = Efficiency(0.3, "a wide window over a single channel leaves most of oneDNN's vectors idle")
GRADIENT = Efficiency(0.05, "this transposed convolution is computed by the slower backward-data primitive")
ROW_BY_ROW = Efficiency(0.4, "a reduction goes row by row")
LIGHT = Efficiency(0.75, "the region has no convolution and no pooling, and its values go through memory")


def cost_of(work: Match | Region) -> Cost:
    """Return the cost of a match or a region: that of its least efficient primitive."""
    if isinstance(work, Region) and not HEAVY.isdisjoint(work.ops) and _is_float(work):
        return Cost(seconds_of_region(work), is_sure=True)
    efficiency = _of_match(work) if isinstance(work, Match) else _of_region(work)
    return Cost(roofline_seconds(work) / efficiency.share, is_sure=True, reason=efficiency.reason)


def _of_match(match: Match) -> Efficiency:
    if _is_of_quantized_images(match):
        return QUANTIZED_IMAGES
    if any(call.op_name in ("quantize", "dequantize") for call in match.calls):
        return _of_quantized(match)
    found = (RULES[call.op_name](call) for call in match.calls if call.op_name in RULES)
    return next((efficiency for efficiency in found if efficiency is not USUAL), USUAL)


def _is_of_quantized_images(match: Match) -> bool:
    """Return True for what reads or stores quantized images where oneDNN has no products of integers, and vectors have
    256 bits: generated kernels sum pairs of products in 16 bits there, and read and write bytes. With oneDNN's products
    of floats, a MobileNetV2 took 1.3 times as long, a ResNet-50 1.4 times."""
    if has_wide_vectors() or can_multiply_integers():
        return False
    values = [*match.calls, *(match.value_of(arg) for call in match.calls for arg in call.args)]
    return any(
        isinstance(value, Call)
        and value.op_name in ("quantize", "dequantize")
        and not isinstance(value.args[0], Constant)
        and value.tensor_type.rank == RANK_OF_IMAGES
        for value in values
    )


def _of_region(region: Region) -> Efficiency:
    return LIGHT if HEAVY.isdisjoint(region.ops) and _is_float(region) else USUAL


def _is_float(region: Region) -> bool:
    """Return True if all that the primitives read and write is float32."""
    values = (value for calls in composites_of(region) for call in calls for value in (call, *operands(call)))
    return all(not isinstance(value.type, TensorType) or value.type.dtype == DTYPE for value in values)


def _product(call: Call) -> Efficiency:
    left, right = call.args
    rows = dims.product(left.tensor_type.shape[:-1])
    is_large = isinstance(right, Constant) and right.data.nbytes >= LEAST_BYTES
    if is_large and right.tensor_type.dtype == DTYPE and isinstance(rows, int) and rows <= MOST_ROWS:
        return FEW_ROWS
    return _of_tokens(call)


def _of_tokens(call: Call) -> Efficiency:
    """Return the efficiency of what is computed for each token.

    Generated kernels took 0.88 to 0.98 of the time in nine of ten transformers, behind convolutions of images and
    sounds too. Classifiers behind a pooling have two axes. One row is what a network makes of a whole image, such as
    where to look: leaving the layout of convolutions for it costs more than it does."""
    result = call.tensor_type
    last = result.rank - 1
    axes = call.attrs.get("axes", (call.attrs.get("axis", last),))
    is_one_row = dims.product(result.shape[:-1]) == 1 or (call.op_name == "matmul" and result.shape[-1] == 1)
    return USUAL if last < 2 or result.dtype != DTYPE or axes != (last,) or is_one_row else SEQUENCES


def _of_quantized(match: Match) -> Efficiency:
    """Return the efficiency of a group of integers.

    Quantized transformers took 1.1 to 1.7 times as long as products of integers that are fused with what stands
    between them. Data has one scale there."""
    product = next((call for call in match.calls if call.op_name == "matmul"), None)
    if product is None:
        is_sequence = [call.tensor_type.rank for call in match.calls] == [RANK_OF_SEQUENCES]
        return QUANTIZED_SEQUENCES if is_sequence else USUAL
    left, right = product.args
    data = next((binding.value for binding in match.bindings if binding.var is left), None)
    if not isinstance(data, Call) or any(parameter.tensor_type.rank for parameter in data.args[1:]):
        return USUAL
    is_sequence = product.tensor_type.rank >= RANK_OF_SEQUENCES and right.tensor_type.rank == 2
    return QUANTIZED_SEQUENCES if is_sequence else USUAL


def _convolution_along_one_axis(call: Call) -> Efficiency:
    """Return the efficiency of a convolution of sequences.

    Images one element high take 1.0 to 2.4 times as long as an operand that is read in place, 1.2 in the geometric
    mean of 58 shapes, and with strides over few channels 1.2 to 4.8 times; but for strides over filters that a core's
    second-level cache does not hold and that are read for many places: 0.72 to 0.93 times with 500 places and more,
    1.04 to 1.27 times with fewer. An open number of places counts as many: 15 shapes took 1.3 times as long, and the
    first call with each number of them, for which oneDNN makes code, 3 times. A filter over few places is a gate, made
    of one number for each channel of an image: leaving the layout of the image for it costs more than it does."""
    weights, places = call.args[1], dims.product(call.tensor_type.shape[2:])
    if call.tensor_type.dtype != DTYPE or not isinstance(weights, Constant):
        return USUAL
    if call.attrs["groups"] != 1:
        return _grouped_convolution(call)
    count = places if isinstance(places, int) else math.inf
    if weights.data.shape[:2] == (1, 1) and count <= MOST_GATES:
        return USUAL
    is_large, is_strided = weights.data.nbytes > MOST_BYTES, set(call.attrs["strides"]) != {1}
    return USUAL if is_strided and is_large and count >= MANY_PLACES else ONE_AXIS


def _grouped_convolution(call: Call) -> Efficiency:
    """Return the efficiency of a convolution in groups.

    There is code for depthwise convolutions of images alone: along one axis, or three, they take 3 to 60 times as
    long as they need to, images one element high or wide 8 to 30 times, and where each channel has several filters 4 to
    12 times. Images in groups of 2 to 4 channels take 1.0 to 1.5 times as long."""
    weight, groups = call.args[1].tensor_type, call.attrs["groups"]
    inner = [size for size in weight.shape[1:] if isinstance(size, int)]
    if call.tensor_type.dtype != DTYPE or len(inner) != weight.rank - 1:
        return USUAL
    is_image = call.op_name == "nn.conv2d" and 1 not in call.args[0].tensor_type.shape[2:]
    if is_image:
        is_depthwise = inner[0] == 1 and weight.shape[0] == groups
        return FEW_CHANNELS if inner[0] <= MOST_CHANNELS and not is_depthwise else USUAL
    if math.prod(inner) <= MOST_PRODUCTS:
        return FEW_CHANNELS
    return UNEVEN_GROUPS if call.op_name == "nn.conv1d" and _is_uneven(call) else USUAL


def _is_uneven(call: Call) -> bool:
    """Return True for strides, and for groups whose filters fill no whole vectors: along one axis these took 1.0 to 1.7
    times as long as an operand that is read in place, 1.28 in the geometric mean of 14 shapes, the others 0.65 to 1.1
    times."""
    filters = call.args[1].tensor_type.shape[0]
    is_filled = isinstance(filters, int) and filters // call.attrs["groups"] % LANES == 0
    return set(call.attrs["strides"]) != {1} or not is_filled


def _convolution(call: Call) -> Efficiency:
    """Return the efficiency of a convolution.

    A window along one axis of a single channel, as over electrodes and waves, takes 1.5 to 5 times as long as it needs.
    """
    if call.attrs["groups"] != 1:
        return _grouped_convolution(call)
    filters, channels, *window = call.args[1].tensor_type.shape
    if call.tensor_type.dtype != DTYPE or not isinstance(filters, int):
        return USUAL
    sizes = [size for size in window if isinstance(size, int) and size != 1]
    if channels == 1 and len(sizes) == 1 and sizes[0] >= WIDE:
        return ONE_CHANNEL
    return _of_filters(filters, channels, sizes)


def _of_filters(filters: int, channels: Dim, sizes: Sequence[int]) -> Efficiency:
    """Return the efficiency of so many filters.

    Up to 6 filters of an image larger than one element take 1.2 to 2.7 times as long as they need to, of a volume
    1.4 to 4.9 times, 8 filters over few channels 1.06 to 1.9 times; these go by where a large window outweighs leaving
    the layout of their neighbours.
    sizes: of the window, but for those of 1."""
    if filters <= MOST_FILTERS and sizes:
        return FEW_FILTERS
    is_half = filters <= HALF_A_VECTOR and isinstance(channels, int) and channels <= HALF_VECTOR_CHANNELS
    return HALF_VECTORS if is_half and math.prod(sizes) >= LARGE_WINDOW else USUAL


def _transposed_convolution(call: Call) -> Efficiency:
    """Return the efficiency of a transposed convolution.

    There is code for one group; others take 7 to 70 times as long. Up to 8 filters take 1.7 to 8 times as long as
    they need to."""
    attrs, filters = call.attrs, call.args[1].tensor_type.shape[1]
    if call.tensor_type.dtype != DTYPE:
        return USUAL
    if attrs["groups"] != 1 or set(attrs["dilation"]) != {1}:
        return GRADIENT
    return FEW_FILTERS if isinstance(filters, int) and filters <= MOST_TRANSPOSED_FILTERS else USUAL


def _reduction(call: Call) -> Efficiency:
    """Return the efficiency of a reduction.

    Rows of 500 elements and more take 1.3 times as long as in registers, of 64 twice, of 2 30 times. Means and sums
    over all of space are poolings, which stay in the layout of convolutions. So does what is made of one number for
    each channel: leaving the layout for it costs more than it does."""
    operand, axes = call.args[0].tensor_type, set(call.attrs["axes"])
    is_pooling = call.op_name != "prod" and operand.rank > 2 and axes == set(range(2, operand.rank))
    is_one_place = operand.rank > 2 and all(size == 1 for size in operand.shape[2:])
    return USUAL if operand.dtype != DTYPE or is_pooling or is_one_place else ROW_BY_ROW


RULES: Mapping[str, Callable[[Call], Efficiency]] = {
    "matmul": _product,
    **dict.fromkeys(("nn.softmax", "nn.layer_norm"), _of_tokens),
    "nn.conv1d": _convolution_along_one_axis,
    **dict.fromkeys(("nn.conv2d", "nn.conv3d"), _convolution),
    **dict.fromkeys(("sum", "mean", "prod"), _reduction),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), _transposed_convolution),
}
