"""Converters of convolutions, pools, resizing, norms and attention: see `kernelyard_onnx_export.converters`."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from kernelyard.plugins.api import Call, scaled_size
from kernelyard_onnx_export.attention import attention
from kernelyard_onnx_export.graph_writer import WIDER_OPSET, GraphWriter, MeaningError
from kernelyard_onnx_export.registry import CONVERTERS, converter, inputs_of


# --- windows ----------------------------------------------------------------------------------------------------------
def _window(call: Call) -> dict[str, Any]:
    attrs = call.attrs
    return {"strides": attrs["strides"], "pads": attrs["padding"], "dilations": attrs["dilation"]}


@converter(*(f"nn.conv{rank}d" for rank in (1, 2, 3)))
def _convolution(writer: GraphWriter, call: Call) -> str:
    kernel = _require_kernel(call)
    return writer.node("Conv", *inputs_of(writer, call), **_window(call), **kernel, group=call.attrs["groups"])


@converter(*(f"nn.conv{rank}d_transpose" for rank in (1, 2, 3)))
def _transposed_convolution(writer: GraphWriter, call: Call) -> str:
    attrs = {"group": call.attrs["groups"], "output_padding": call.attrs["output_padding"], **_require_kernel(call)}
    return writer.node("ConvTranspose", *inputs_of(writer, call), **_window(call), **attrs)


def _require_kernel(call: Call) -> dict[str, Any]:
    sizes = call.args[1].tensor_type.shape[2:]
    return {"kernel_shape": sizes} if all(isinstance(size, int) for size in sizes) else {}


@converter(*(f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3)))
def _pool(writer: GraphWriter, call: Call) -> str:
    is_max = "max" in call.op_name
    attrs = {"kernel_shape": call.attrs["pool_size"], "ceil_mode": int(call.attrs["ceil_mode"]), **_window(call)}
    if not is_max:
        if set(call.attrs["dilation"]) == {1}:
            del attrs["dilations"]  # which the standard has since 19 only, and quantized forms of engines do not
        attrs["count_include_pad"] = int(call.attrs["count_include_pad"])
    return writer.node("MaxPool" if is_max else "AveragePool", *inputs_of(writer, call), **attrs)


_MODES = {"nearest": "nearest", "linear": "linear", "cubic": "cubic"}


@converter("image.resize")
def _resize(writer: GraphWriter, call: Call) -> str:
    x, attrs = call.args[0], call.attrs
    given = {
        "mode": _MODES[attrs["method"]],
        "coordinate_transformation_mode": attrs["coordinate_transformation_mode"],
        "nearest_mode": attrs["nearest_mode"] if attrs["method"] == "nearest" else None,
        "cubic_coeff_a": attrs["cubic_coeff_a"] if attrs["method"] == "cubic" else None,
    }
    if attrs["scales"]:
        for old, new, scale in zip(x.tensor_type.shape[2:], attrs["sizes"], attrs["scales"], strict=True):
            if scaled_size(old, scale) != new:
                raise MeaningError(f"Resize takes {old} times {scale:g} to another size than {new}")
        scales = writer.constant(np.array([1, 1, *attrs["scales"]], np.float32))
        return writer.node("Resize", writer.name(x), "", scales, **given)
    sizes = writer.shape([*x.tensor_type.shape[:2], *attrs["sizes"]])
    return writer.node("Resize", writer.name(x), "", "", sizes, **given)


# --- norms ------------------------------------------------------------------------------------------------------------
@converter("nn.layer_norm")
def _layer_norm(writer: GraphWriter, call: Call) -> str:
    axes, rank = call.attrs["axes"], call.args[0].tensor_type.rank
    if tuple(axes) == tuple(range(rank - len(axes), rank)):
        return writer.node("LayerNormalization", *inputs_of(writer, call), axis=axes[0], epsilon=call.attrs["epsilon"])
    x = writer.name(call.args[0])
    centred = writer.node("Sub", x, writer.node("ReduceMean", x, writer.integers(axes)))
    gamma, beta = (_broadcast_over(writer, call, place) for place in (1, 2))
    return writer.node("Add", writer.node("Mul", _normalize_mean_square(writer, call, centred), gamma), beta)


@converter("nn.rms_norm")
def _rms_norm(writer: GraphWriter, call: Call) -> str:
    return writer.node(
        "Mul", _normalize_mean_square(writer, call, writer.name(call.args[0])), _broadcast_over(writer, call, 1)
    )


def _normalize_mean_square(writer: GraphWriter, call: Call, x: str) -> str:
    """Divide by the root of the mean square and epsilon."""
    mean = writer.node("ReduceMean", writer.node("Mul", x, x), writer.integers(call.attrs["axes"]))
    epsilon = writer.number(call.attrs["epsilon"], call.tensor_type.dtype)
    return writer.node("Div", x, writer.node("Sqrt", writer.node("Add", mean, epsilon)))


def _broadcast_over(writer: GraphWriter, call: Call, place: int) -> str:
    """Return a parameter of a norm, laid out to broadcast."""
    shape = [size if axis in call.attrs["axes"] else 1 for axis, size in enumerate(call.args[0].tensor_type.shape)]
    return writer.node("Reshape", writer.name(call.args[place]), writer.shape(shape))


@converter("nn.group_norm")
def _group_norm(writer: GraphWriter, call: Call) -> str:
    writer.opset = WIDER_OPSET
    attrs = {"num_groups": call.attrs["num_groups"], "epsilon": call.attrs["epsilon"]}
    if call.tensor_type.dtype == "float64":
        attrs["stash_type"] = TensorProto.DOUBLE  # mean and variance are float32 by default
    return writer.node("GroupNormalization", *inputs_of(writer, call), **attrs)


@converter("nn.batch_norm")
def _batch_norm(writer: GraphWriter, call: Call) -> str:
    """Write the formula: ONNX's operator has its channels on axis 1 alone."""
    x, gamma, beta, mean, variance = (writer.name(arg) for arg in call.args)
    rank, axis = call.tensor_type.rank, call.attrs["axis"] % call.tensor_type.rank
    shape = writer.integers([-1 if place == axis else 1 for place in range(rank)])
    epsilon = writer.number(call.attrs["epsilon"], call.tensor_type.dtype)
    scale = writer.node("Div", gamma, writer.node("Sqrt", writer.node("Add", variance, epsilon)))
    mean, scale, beta = (writer.node("Reshape", each, shape) for each in (mean, scale, beta))
    return writer.node("Add", writer.node("Mul", writer.node("Sub", x, mean), scale), beta)


CONVERTERS.update(dict.fromkeys(("nn.attention", "nn.attention_bias"), attention))
