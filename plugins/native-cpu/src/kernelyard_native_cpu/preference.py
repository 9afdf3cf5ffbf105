"""Preference for generated kernels over a library's primitives.

What was measured (benchmarks/models.py and kernels.py; float32, vectors of 512 bits): products of matrices are as quick
as a library's, and take with them what follows (bias, activation, residual, norm) without going through memory. So are
attention, norms, softmax, and whatever goes element by element or moves elements. Convolutions and pools are not, and
what lies between them stays with them, in the layout that they like; but for what sequences go through. Integers are
treated alike where VNNI multiplies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from kernelyard import dims
from kernelyard.plugins.api import Call, Constant, Match, Region, TensorType, operands
from kernelyard_native_cpu.machine import Machine

VECTOR_BITS = 512
DTYPE = "float32"
OF_LIBRARIES = frozenset(
    (
        *("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
        *("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
        *("nn.batch_norm", "image.resize"),
    )
)


# A product of few rows takes as long as its matrix takes to be read: oneDNN reads at 50 to 60 % of the bandwidth.
MOST_ROWS = 8
LEAST_BYTES = 1 << 20
# Of convolutions along one axis with strides: the filters, and the products of a sum.
MOST_BYTES = 1 << 20
SHORT = 64
# Of convolutions in groups: the channels of a group of images, and the products of a sum along one axis or three.
MOST_CHANNELS, MOST_PRODUCTS = 4, 1 << 10
MOST_FILTERS = 3
# A batch, places and features: of more axes are images, too.
RANK_OF_SEQUENCES = 3


def preference(work: Match | Region, machine: Machine) -> str | None:
    """Return the reason why a match or a region is faster as generated kernels; None if it is not."""
    if machine.vector_bits < VECTOR_BITS:
        return None
    return _of_match(work, machine) if isinstance(work, Match) else _of_region(work)


def _of_match(match: Match, machine: Machine) -> str | None:
    if any(call.op_name in ("quantize", "dequantize") for call in match.calls):
        return _of_quantized_tokens(match) if machine.dot_instruction == "vpdpbusd" else None
    for call in match.calls:
        reason = RULES[call.op_name](call) if call.op_name in RULES else None
        if reason is not None:
            return reason
    return None


def _product(call: Call) -> str | None:
    left, right = call.args
    rows = dims.product(left.tensor_type.shape[:-1])
    is_large = isinstance(right, Constant) and right.data.nbytes >= LEAST_BYTES
    if is_large and right.tensor_type.dtype == DTYPE and isinstance(rows, int) and rows <= MOST_ROWS:
        return "a matmul of few rows with a large constant matrix, which a generated kernel streams in storage order"
    return _of_tokens(call)


def _of_tokens(call: Call) -> str | None:
    """Claim what transformers compute of sequences, behind convolutions of images and sounds: 1.02 to
    1.14 times as quick in nine of ten such networks. Classifiers behind a pooling have two axes, and stay."""
    result = call.tensor_type
    last = result.rank - 1
    axes = call.attrs.get("axes", (call.attrs.get("axis", last),))
    if last < 2 or result.dtype != DTYPE or axes != (last,):
        return None
    return "a product, softmax or norm of sequences, which generated kernels fuse with what stands beside it"


def _of_quantized_tokens(match: Match) -> str | None:
    """Claim what quantized transformers compute of sequences, and what quantizes sequences: 1.1 to 1.7 times as quick
    as the library with what stands between. Data has one scale, as generated products of integers want it."""
    product = next((call for call in match.calls if call.op_name == "matmul"), None)
    if product is None:
        is_sequence = [call.tensor_type.rank for call in match.calls] == [RANK_OF_SEQUENCES]
        return "sequences, which a generated kernel quantizes as it computes them" if is_sequence else None
    left, right = product.args
    data = next((binding.value for binding in match.bindings if binding.var is left), None)
    if not isinstance(data, Call) or any(parameter.tensor_type.rank for parameter in data.args[1:]):
        return None
    if product.tensor_type.rank < RANK_OF_SEQUENCES or right.tensor_type.rank != 2:
        return None
    return "a product of quantized sequences, which a generated kernel fuses with what stands beside it"


def _convolution_along_one_axis(call: Call) -> str | None:
    """oneDNN takes 1.0 to 2.4 times as long, 1.2 in the geometric mean of 46 shapes, but for strides over filters that
    a core's second-level cache does not hold, and over a single channel with a short filter. Where the number of places
    is open, its code for few of them is the better one."""
    weights, places = call.args[1], call.tensor_type.shape[2:]
    if call.tensor_type.dtype != DTYPE or not isinstance(weights, Constant):
        return None
    if call.attrs["groups"] != 1:
        return _grouped_convolution(call)
    if not all(isinstance(size, int) for size in places):
        return None
    is_large, reduced = weights.data.nbytes > MOST_BYTES, math.prod(weights.data.shape[1:])
    if set(call.attrs["strides"]) != {1} and (is_large or reduced < SHORT):
        return None
    return "a generated kernel reads the operand of a 1-D convolution in place, in the layout that it has"


def _grouped_convolution(call: Call) -> str | None:
    """oneDNN has code for depthwise convolutions of images alone: along one axis, or three, it takes 3 to 60 times as
    long as our kernels. Images in groups of 2 to 4 channels take it 1.0 to 1.5 times as long."""
    inner = [size for size in call.args[1].tensor_type.shape[1:] if isinstance(size, int)]
    if call.tensor_type.dtype != DTYPE or len(inner) != call.args[1].tensor_type.rank - 1:
        return None
    is_image = call.op_name == "nn.conv2d"
    if not (1 < inner[0] <= MOST_CHANNELS if is_image else math.prod(inner) <= MOST_PRODUCTS):
        return None
    return "libraries have no code of their own for groups of so few channels"


def _convolution(call: Call) -> str | None:
    """oneDNN computes 8 filters at least: 1.2 times as long for up to 3 filters of an image larger than one element."""
    if call.attrs["groups"] != 1:
        return _grouped_convolution(call)
    filters, _, *window = call.args[1].tensor_type.shape
    is_few = call.op_name == "nn.conv2d" and isinstance(filters, int) and filters <= MOST_FILTERS
    if call.tensor_type.dtype != DTYPE or not is_few or set(window) == {1}:
        return None
    return "a convolution with so few filters leaves most of a library's vectors empty"


def _transposed_convolution(call: Call) -> str | None:
    """oneDNN has code for one group whose windows are whole numbers of strides; other transposed convolutions it
    computes as gradients, which takes 7 to 70 times as long as our kernels."""
    attrs, windows = call.attrs, call.args[1].tensor_type.shape[2:]
    is_whole = all(
        isinstance(size, int) and size % stride == 0 for size, stride in zip(windows, attrs["strides"], strict=True)
    )
    if call.tensor_type.dtype != DTYPE or (is_whole and attrs["groups"] == 1 and set(attrs["dilation"]) == {1}):
        return None
    return "libraries compute this transposed convolution by the slower backward-data primitive"


def _reduction(call: Call) -> str | None:
    """oneDNN reduces each row by itself: 1.3 times as slow as our kernels for rows of 500 elements and more, 2 for 64,
    30 for 2. Means and sums over all of space are poolings, which stay in the layout of convolutions. So does what is
    made of one number for each channel: leaving the layout for it costs more than it does."""
    operand, axes = call.args[0].tensor_type, set(call.attrs["axes"])
    is_pooling = call.op_name != "prod" and operand.rank > 2 and axes == set(range(2, operand.rank))
    is_one_place = operand.rank > 2 and all(size == 1 for size in operand.shape[2:])
    if operand.dtype != DTYPE or is_pooling or is_one_place:
        return None
    return "libraries reduce row by row; a generated kernel reduces in registers, with what is computed before"


RULES: Mapping[str, Callable[[Call], str | None]] = {
    "matmul": _product,
    **dict.fromkeys(("nn.softmax", "nn.layer_norm"), _of_tokens),
    "nn.conv1d": _convolution_along_one_axis,
    **dict.fromkeys(("nn.conv2d", "nn.conv3d"), _convolution),
    **dict.fromkeys(("sum", "mean", "prod"), _reduction),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), _transposed_convolution),
}


def _of_region(region: Region) -> str | None:
    if not OF_LIBRARIES.isdisjoint(region.ops):
        return None
    for _, composite in region.composites():
        for binding in composite.bindings:
            values = (binding.var, *operands(binding.value))
            if any(isinstance(each.type, TensorType) and each.type.dtype != DTYPE for each in values):
                return None
    return "the region has no convolution and no pooling, and generated matmul kernels fuse their epilogues"
