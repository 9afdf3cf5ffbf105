"""Patterns of OpenVINO: each operator that `operators` can write, wherever its check accepts the operands."""

from functools import cache

from kernelyard.plugins.api import Accept, Decline, FusionPattern, is_nonnegative, is_op, scaled_size
from kernelyard_openvino.operators import KERNELS

FLOAT, INDEX, BOOL = ("float32",), ("int32", "int64"), ("bool",)
DTYPES = {  # of the operands; float32 for all others. OpenVINO computes in 32 bits, which is enough for an index
    "astype": [("bool", "int32")],
    "logical_and": [BOOL, BOOL],
    "logical_not": [BOOL],
    "logical_or": [BOOL, BOOL],
    "logical_xor": [BOOL, BOOL],
    "take": [FLOAT, INDEX],
    "where": [BOOL, FLOAT, FLOAT],
}
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
VALUES = {  # of attributes, where OpenVINO lacks some
    "astype": {"dtype": ("float32",)},
    "image.resize": {"coordinate_transformation_mode": COORDINATES},
    "nn.attention": {"causal": ("none", "top_left")},
    "nn.attention_bias": {"causal": ("none",)},
    "nn.avg_pool1d": {"dilation": ((1,),)},
    "nn.avg_pool2d": {"dilation": ((1, 1),)},
    "nn.avg_pool3d": {"dilation": ((1, 1, 1),), "ceil_mode": (False,)},
    "nn.lrn": {"size": range(1, 100, 2), "bias": range(100)},  # the CPU plugin takes the whole part of a bias
    "pad": {"mode": ("constant", "edge", "reflect")},
}


def check(match):
    call = match.call
    for i, operand in enumerate(call.args):
        dtype = operand.tensor_type.dtype
        expected = DTYPES[call.op_name][i] if call.op_name in DTYPES else FLOAT
        if dtype not in expected:
            return Decline("dtype", f"operand {i} of {call.op_name} is {dtype}, not {' or '.join(expected)}", operand)
        if 0 in operand.tensor_type.shape:
            return Decline("shape", f"operand {i} of {call.op_name} is empty", operand)
    for name, values in VALUES.get(call.op_name, {}).items():
        if call.attrs[name] not in values:
            return Decline("attribute", f"{name} of {call.op_name} is {call.attrs[name]}, not one of {values}")
    holds, otherwise = CONDITIONS.get(call.op_name, (None, ""))
    return Accept() if holds is None or holds(call) else Decline("attribute", otherwise)


def _is_scaled_size(call):
    """Return whether scales, where there are any, say the sizes that the result has."""
    sizes = zip(call.args[0].tensor_type.shape[2:], call.attrs["sizes"], call.attrs["scales"] or (), strict=False)
    return all(new == scaled_size(old, scale) for old, new, scale in sizes)


def _divides_by_what_counts(call):
    """Return whether the last windows of an average end with the padding, or nothing but the image counts."""
    return not (call.attrs["ceil_mode"] and call.attrs["count_include_pad"] and any(call.attrs["padding"]))


def _keeps_its_strides(call):
    """Return whether OpenVINO leaves the strides where they are: those of windows of one element it moves to what comes
    before, and forgets the padding.
    """
    window, attrs = call.args[1].tensor_type.shape[2:], call.attrs
    return set(window) != {1} or set(attrs["strides"]) == {1} or not any(attrs["padding"])


def _has_range(call):
    least, most = call.attrs["min"], call.attrs["max"]
    return least is None or most is None or least <= most


def _reflects_once(call):
    """Return whether an axis has more elements than are reflected on either side of it."""
    shape, pads = call.args[0].tensor_type.shape, call.attrs["pads"]
    amounts = zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)
    return call.attrs["mode"] != "reflect" or all(
        is_nonnegative(d - 1 - b) and is_nonnegative(d - 1 - e) for d, b, e in amounts
    )


def _window_fits(call):
    """Return whether the window is no larger than the padded input, as it may be in ceil_mode."""
    spatial, pads, rank = call.args[0].tensor_type.shape[2:], call.attrs["padding"], len(call.attrs["pool_size"])
    taps = zip(call.attrs["pool_size"], call.attrs["dilation"], strict=True)
    reach = [step * (count - 1) + 1 for count, step in taps]
    return not call.attrs["ceil_mode"] or all(
        is_nonnegative(spatial[n] + pads[n] + pads[rank + n] - reach[n]) for n in range(rank)
    )


CONDITIONS = {  # of attributes together, with what is said where they do not hold
    "clip": (_has_range, "OpenVINO has no clip to nothing"),
    "image.resize": (_is_scaled_size, "OpenVINO takes the sizes of image.resize from its scales"),
    "nn.celu": (lambda call: call.attrs["alpha"] > 0, "OpenVINO is given celu as an elu, which bends the other way"),
    **dict.fromkeys(
        ("nn.conv1d", "nn.conv2d", "nn.conv3d"),
        (_keeps_its_strides, "OpenVINO moves strides of windows of one element, and forgets the padding"),
    ),
    **dict.fromkeys(
        ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"),
        (_window_fits, "OpenVINO has no window that is larger than the padded input"),
    ),
    "pad": (_reflects_once, "OpenVINO reflects fewer elements than an axis has"),
    **dict.fromkeys(
        ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
        (_divides_by_what_counts, "OpenVINO counts what lies beyond the padding in the last windows of ceil_mode"),
    ),
}


@cache
def fusion_patterns():
    return tuple(FusionPattern(f"openvino.{name}", is_op(name)(varargs=True), check) for name in KERNELS)
