"""Preference for generated kernels over a library's primitives.

What was measured (benchmarks/models.py and kernels.py; float32, vectors of 512 bits): products of matrices are as quick
as a library's, and take with them what follows (bias, activation, residual, norm) without going through memory. So are
attention, norms, softmax, and whatever goes element by element or moves elements. Convolutions and pools are not, and
what lies between them stays with them, in the layout that they like.
"""

from __future__ import annotations

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
# The filters of a convolution along one axis.
MOST_BYTES = 1 << 16


def preference(work: Match | Region, machine: Machine) -> str | None:
    """Return the reason why a match or a region is faster as generated kernels; None if it is not."""
    if machine.vector_bits < VECTOR_BITS:
        return None
    return _of_match(work) if isinstance(work, Match) else _of_region(work)


def _of_match(match: Match) -> str | None:
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
    return None


def _short_convolution(call: Call) -> str | None:
    """Along one axis there is little to compute: what a library does before and after costs 10 to 80 % of it. Where the
    number of places is open, its code for few of them is the better one."""
    weights, places = call.args[1], call.tensor_type.shape[2:]
    is_small = isinstance(weights, Constant) and weights.data.nbytes <= MOST_BYTES
    if call.tensor_type.dtype != DTYPE or call.attrs["groups"] != 1 or not all(isinstance(n, int) for n in places):
        return None
    return "a library's call overhead is large beside a 1-D convolution with a small filter" if is_small else None


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


RULES: Mapping[str, Callable[[Call], str | None]] = {
    "matmul": _product,
    "nn.conv1d": _short_convolution,
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
