"""Convolution and transposed convolution."""

from __future__ import annotations

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.windows import Window, pad_explicitly, read_window
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter


@converter("Conv")
def convolution(node: Node) -> Expr:
    return convolve(node, node.input(0), node.input(1), node.optional(2))


def convolve(node: Node, x: Expr, weight: Expr, bias: Expr | None) -> Expr:
    """Convolution with the node's window attributes, bias added."""
    rank = spatial_rank(node, x)
    kernel = kernel_of(node, weight)
    window = read_window(node, node.shape(x)[2:], kernel)
    if window.static_padding is None:
        x, window = pad_explicitly(node, x, window, 0.0)
    result = node.op(
        f"nn.conv{rank}d",
        x,
        weight,
        strides=window.strides,
        padding=window.static_padding,
        dilation=window.dilation,
        groups=int(node.attr("group", 1)),
    )
    return add_bias(node, result, bias)


def spatial_rank(node: Node, x: Expr) -> int:
    """Return the number of spatial axes, which must be 1, 2 or 3."""
    rank = node.rank(x) - 2
    return rank if rank in (1, 2, 3) else node.reject(f"it has {rank} spatial axes; 1, 2 and 3 are supported")


def kernel_of(node: Node, weight: Expr) -> tuple[int, ...]:
    """Return the kernel's size, from the weight's shape."""
    sizes = node.shape(weight)[2:]
    numbers = tuple(size for size in sizes if isinstance(size, int))
    if len(numbers) != len(sizes):
        node.reject("the size of its kernel is not fixed")
    stated = tuple(node.attr("kernel_shape") or numbers)
    return (
        numbers
        if stated == numbers
        else node.reject(f"its kernel_shape {stated} differs from that of its weight, {numbers}")
    )


def add_bias(node: Node, x: Expr, bias: Expr | None) -> Expr:
    """`x` plus a bias per channel (axis 1)."""
    return x if bias is None else node.op("add", x, node.along(bias, 1, node.rank(x)))


@converter("ConvTranspose")
def transposed_convolution(node: Node) -> Expr:
    x, weight = node.input(0), node.input(1)
    rank = spatial_rank(node, x)
    spatial = node.shape(x)[2:]
    same = node.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    window = read_window(node, (1,) * rank, kernel_of(node, weight))
    output_padding = tuple(node.attr("output_padding") or (0,) * rank)
    padding = window.padding
    shape = node.attr("output_shape")
    if shape or same:
        wanted = tuple(shape)[-rank:] if shape else tuple(n * s for n, s in zip(spatial, window.strides, strict=True))
        padding, output_padding = _padding_for(node, spatial, wanted, window, output_padding)
    result = node.op(
        f"nn.conv{rank}d_transpose",
        x,
        weight,
        strides=window.strides,
        padding=padding,
        dilation=window.dilation,
        groups=int(node.attr("group", 1)),
        output_padding=output_padding,
    )
    return add_bias(node, result, node.optional(2))


def _padding_for(
    node: Node, spatial: tuple[Dim, ...], wanted: tuple[Dim, ...], window: Window, output_padding: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return padding, and output padding, that make the output as large as wanted."""
    begins, ends, extra = [], [], []
    for axis, size in enumerate(spatial):
        natural = (size - 1) * window.strides[axis] + output_padding[axis] + window.reach[axis]
        total = natural - wanted[axis]
        if not isinstance(total, int):
            node.reject("its output_shape is fixed, but the size of its input is not")
        half = max(total, 0) // 2
        upper = node.attr("auto_pad", "NOTSET") == "SAME_UPPER"
        begins.append(half if upper else max(total, 0) - half)
        ends.append(max(total, 0) - half if upper else half)
        extra.append(output_padding[axis] - min(total, 0))
    return (*begins, *ends), tuple(extra)


@converter("ConvInteger", since=10)
def integer_convolution(node: Node) -> Expr:
    # In float64 all sums of products of 8-bit numbers are exact.
    x, weight = (node.cast(node.input(index), "float64") for index in (0, 1))
    x = subtract_zero_point(node, x, node.optional(2), None)
    weight = subtract_zero_point(node, weight, node.optional(3), 0)
    return node.cast(convolve(node, x, weight, None), "int32")


def subtract_zero_point(node: Node, x: Expr, zero_point: Expr | None, axis: int | None) -> Expr:
    """`x - zero_point`, the zero point one number or one per index of `axis`."""
    if zero_point is None:
        return x
    shift = node.cast(zero_point, node.dtype(x))
    per_axis = axis is not None and dims.product(node.shape(zero_point)) != 1
    shift = node.along(shift, axis, node.rank(x)) if per_axis and axis is not None else node.reshape(shift, ())
    return node.op("subtract", x, shift)
