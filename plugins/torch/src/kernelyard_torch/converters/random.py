"""Random numbers, which a compiled program draws anew in each call: PyTorch's seed does not reach it."""

from __future__ import annotations

from kernelyard.plugins.api import Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

OPERATORS = ("aten.rand.default", "aten.randn.default", "aten.randperm.default", "aten.normal_functional.default")


@converter("aten.rand.default")
def uniform(node: Node, *_: object) -> Expr:
    return _draw(node, "random.uniform")


@converter("aten.randn.default")
def normal(node: Node, *_: object) -> Expr:
    return _draw(node, "random.normal")


@converter("aten.normal_functional.default")
def normal_of(node: Node, x: Expr, mean: float, deviation: float) -> Expr:
    numbers = _draw(node, "random.normal")
    scaled = numbers if deviation == 1 else node.op("multiply", numbers, deviation)
    return scaled if mean == 0 else node.op("add", scaled, mean)


def _draw(node: Node, name: str) -> Expr:
    type_ = node.result
    return node.op(name, shape=type_.shape, dtype=type_.dtype)


@converter("aten.randperm.default")
def permutation(node: Node, count: object, *_: object) -> Expr:
    """Draw a random permutation: the argsort of random numbers."""
    size = node.result.shape[0]
    numbers = node.op("random.uniform", shape=(size,), dtype="float64")
    return node.ops("topk", numbers, k=size, axis=0)[1]
