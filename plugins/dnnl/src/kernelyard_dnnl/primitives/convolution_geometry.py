"""Windows of convolutions as oneDNN's primitives take them."""

from __future__ import annotations

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl.primitive import Vector
from kernelyard_dnnl.values import Node

DIRECT, TRANSPOSED_DIRECT = 1, 10  # algorithms


class Geometry(NamedTuple):
    """The window of a convolution; dilation counts from 0, as oneDNN has it."""

    kind: str
    algorithm: int
    strides: Vector
    dilation: Vector
    padding_begin: Vector
    padding_end: Vector


def geometry_of(node: Node) -> Geometry:
    """Return the window of a conv node."""
    attrs = node.attrs
    return Geometry(
        "convolution_forward",
        DIRECT,
        Vector(tuple(attrs["strides"])),
        Vector(tuple(step - 1 for step in attrs["dilation"])),
        Vector(node.sizes("padding_begin")),
        Vector(node.sizes("padding_end")),
    )


def transposed_geometry(node: Node) -> Geometry:
    """Return the window of a conv_transpose node; the padding at its end follows from the shape of the result."""
    attrs, data = node.attrs, node.operands["data"].shape[2:]
    kernel = node.operands["weight"].shape[2:]
    sizes = zip(data, node.shape[2:], kernel, attrs["strides"], attrs["dilation"], attrs["padding_begin"], strict=True)
    padding_end = tuple((i - 1) * s + (k - 1) * d + 1 - before - o for i, o, k, s, d, before in sizes)
    return Geometry(
        "deconvolution_forward",
        TRANSPOSED_DIRECT,
        Vector(tuple(attrs["strides"])),
        Vector(tuple(step - 1 for step in attrs["dilation"])),
        Vector(tuple(attrs["padding_begin"])),
        Vector(padding_end),
    )
