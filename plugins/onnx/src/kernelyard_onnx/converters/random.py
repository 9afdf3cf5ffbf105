"""Random numbers."""

from __future__ import annotations

import numpy as np

from kernelyard.dims import Shape
from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter
from kernelyard_onnx.tensors import DTYPES, type_name


def uniform(node: Node, shape: Shape, dtype: str, low: float = 0.0, high: float = 1.0) -> Expr:
    """Return numbers between two bounds."""
    return node.op("random.uniform", shape=shape, low=low, high=high, dtype=dtype, seed=seed_of(node.attr("seed")))


def seed_of(value: float | None) -> int | None:
    """Return the seed that a node's attribute stands for: each float has its own."""
    return None if value is None else int.from_bytes(np.float32(value).tobytes(), "little")


def _dtype(node: Node, like: str) -> str:
    data_type = node.attr("dtype")
    return (
        like
        if data_type is None
        else DTYPES.get(data_type) or node.reject(f"its element type is {type_name(data_type)}")
    )


def _uniform(node: Node, shape: Shape, like: str) -> Expr:
    return uniform(node, shape, _dtype(node, like), float(node.attr("low", 0.0)), float(node.attr("high", 1.0)))


def _normal(node: Node, shape: Shape, like: str) -> Expr:
    attrs = {"mean": float(node.attr("mean", 0.0)), "scale": float(node.attr("scale", 1.0))}
    return node.op("random.normal", shape=shape, dtype=_dtype(node, like), seed=seed_of(node.attr("seed")), **attrs)


@converter("RandomUniform")
def random_uniform(node: Node) -> Expr:
    return _uniform(node, tuple(node.require_attr("shape")), "float32")


@converter("RandomUniformLike")
def random_uniform_like(node: Node) -> Expr:
    return _uniform(node, node.shape(node.input(0)), node.dtype(node.input(0)))


@converter("RandomNormal")
def random_normal(node: Node) -> Expr:
    return _normal(node, tuple(node.require_attr("shape")), "float32")


@converter("RandomNormalLike")
def random_normal_like(node: Node) -> Expr:
    return _normal(node, node.shape(node.input(0)), node.dtype(node.input(0)))


@converter("Multinomial", since=7)
def multinomial(node: Node) -> Expr:
    """Draw classes by the logarithms of their weights: count the cumulative probabilities below a random number."""
    x, count = node.input(0), int(node.attr("sample_size", 1))
    rows, classes = node.shape(x)
    sums = node.op("cumsum", node.op("nn.softmax", x, axis=1), axis=1)
    drawn = uniform(node, (rows, count, 1), node.dtype(x))
    below = node.op("less", node.reshape(sums, (rows, 1, classes)), drawn)
    number = node.op("sum", node.cast(below, "int64"), axes=(2,), keepdims=False)
    last = node.op("subtract", node.expr(classes, "int64"), 1)
    return node.cast(node.op("minimum", number, last), DTYPES.get(node.attr("dtype", 6), "int32"))
