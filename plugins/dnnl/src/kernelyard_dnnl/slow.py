"""Where a generated kernel is quicker than oneDNN's fast code: rules on shapes, each with what was measured.

Measured on a Zen 4 core; what counts is how much of a vector has work in it, which is alike on others.
"""

from __future__ import annotations

import math

from kernelyard.patterns import Decline
from kernelyard_dnnl.composite import DECONVOLUTIONS, Composite

# oneDNN works on 8 or 16 result channels at a time, however few there are; generated kernels go along the image.
FEW_CHANNELS = 4
WIDE_IMAGE = 16
# A region cut in two has its channels-last data transposed: each element must be worth that by the products it is in.
PRODUCTS, PRODUCTS_OF_TRANSPOSED = 8, 4


def few_result_channels(composite: Composite) -> Decline | None:
    """Declines convolutions whose result has so few channels that most of each vector would be idle.

    Of a 3x3 convolution of 64x64 pixels with 64 channels to 1 to 4 channels, a generated kernel takes 0.25 to 0.45 of
    the time; of a transposed one with windows of 2x2 side by side, 0.15 to 0.4.
    """
    data, weight = (operand.tensor_type for operand in composite.operands)
    attrs, result = composite.anchor.attrs, composite.anchor.tensor_type
    channels, width = result.shape[1], next((dim for dim in reversed(result.shape[2:]) if dim != 1), 1)
    if data.dtype != "float32" or attrs["groups"] != 1 or not isinstance(channels, int) or channels > FEW_CHANNELS:
        return None
    if isinstance(width, int) and width < WIDE_IMAGE:
        return None
    window = math.prod(dim for dim in weight.shape[2:] if isinstance(dim, int))
    is_transposed = composite.anchor.op_name in DECONVOLUTIONS
    needed = PRODUCTS_OF_TRANSPOSED if is_transposed else PRODUCTS * math.prod(attrs["strides"])
    if data.shape[1] != 1 and window < needed:
        return None
    shown = "one result channel" if channels == 1 else f"{channels} result channels"
    return Decline("slow", f"{shown}: oneDNN computes 8 or 16 at a time; a kernel goes along the image")
