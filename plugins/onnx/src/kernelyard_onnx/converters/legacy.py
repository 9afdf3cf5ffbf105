"""Operators that the standard had as experimental ones before opset 10, and models of converters of that time have.

onnxruntime runs them still.
"""

from __future__ import annotations

import numpy as np

from kernelyard.plugins.api import Constant, Expr
from kernelyard_onnx.converters.slicing import slice_by_inputs
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter


def _scale(node: Node, x: Expr, name: str, default: float) -> Expr:
    return node.op("multiply", x, float(node.attr(name, default)))


@converter("Affine")
def affine(node: Node) -> Expr:
    return node.op("add", _scale(node, node.input(0), "alpha", 1.0), float(node.attr("beta", 0.0)))


@converter("Scale")
def scale(node: Node) -> Expr:
    return _scale(node, node.input(0), "scale", 1.0)


@converter("ScaledTanh")
def scaled_tanh(node: Node) -> Expr:
    return _scale(node, node.op("tanh", _scale(node, node.input(0), "beta", 1.0)), "alpha", 1.0)


@converter("ParametricSoftplus")
def parametric_softplus(node: Node) -> Expr:
    return _scale(node, node.op("nn.softplus", _scale(node, node.input(0), "beta", 1.0)), "alpha", 1.0)


@converter("ImageScaler")
def image_scaler(node: Node) -> Expr:
    """Scale an image, and add a bias to each of its channels."""
    x = _scale(node, node.input(0), "scale", 1.0)
    bias = np.array(node.require_attr("bias"), np.float32).reshape(-1, 1, 1)
    return node.broadcast("add", x, node.cast(Constant(bias), node.dtype(x)))


@converter("Crop")
def crop(node: Node) -> Expr:
    """Cut borders (left, top, right, bottom) off an image; `scale` gives the height and width that are left."""
    x, border, sizes = node.input(0), node.attr("border"), node.attr("scale")
    if border is None or len(border) != 4:
        node.reject("its border has not four numbers")
    left, top, right, bottom = border
    height, width = node.shape(x)[-2:]
    stops = (top + sizes[0], left + sizes[1]) if sizes else (height - bottom, width - right)
    rank = node.rank(x)
    return node.slice(node.slice(x, rank - 2, top, stops[0]), rank - 1, left, stops[1])


@converter("DynamicSlice")
def dynamic_slice(node: Node) -> Expr:
    return slice_by_inputs(node)
