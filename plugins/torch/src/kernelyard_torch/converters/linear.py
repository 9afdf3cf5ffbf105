"""Matrix products."""

from __future__ import annotations

import numpy as np

from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Expr
from kernelyard_torch.node import Node
from kernelyard_torch.promotion import promote
from kernelyard_torch.registry import converter


@converter("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default", "aten.dot.default")
def matmul(node: Node, a: Expr, b: Expr) -> Expr:
    return node.op("matmul", *promote(node, a, b))


@converter("aten.linear.default")
def linear(node: Node, x: Expr, weight: Expr, bias: Expr | None) -> Expr:
    product = node.op("matmul", x, node.permute(weight, list(range(node.rank(weight)))[::-1]))
    return product if bias is None else node.op("add", product, bias)


@converter("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def addmm(node: Node, bias: Expr, a: Expr, b: Expr, beta: float, alpha: float) -> Expr:
    product = scale(node, node.op("matmul", *promote(node, a, b)), alpha)
    return product if beta == 0 else node.op("add", product, scale(node, node.cast(bias, node.dtype(product)), beta))


@converter("aten.addbmm.default")
def add_sum_of_products(node: Node, bias: Expr, a: Expr, b: Expr, beta: float, alpha: float) -> Expr:
    total = scale(node, node.op("sum", node.op("matmul", *promote(node, a, b)), axes=(0,)), alpha)
    return total if beta == 0 else node.op("add", total, scale(node, node.cast(bias, node.dtype(total)), beta))


def scale(node: Node, x: Expr, factor: float) -> Expr:
    """Return a tensor times a number, which is cut to an integer for tensors of integers."""
    if factor == 1:
        return x
    return node.op("multiply", x, factor if is_float(node.dtype(x)) else int(factor))


@converter("aten._cdist_forward.default")
def cdist(node: Node, a: Expr, b: Expr, p: float, mode: int | None) -> Expr:
    left = node.unsqueeze(a, node.rank(a) - 1)
    right = node.unsqueeze(b, node.rank(b) - 2)
    return norm(node, node.op("subtract", left, right), p)


def norm(node: Node, x: Expr, p: float) -> Expr:
    """Return the p-norm over the last axis."""
    last, size = (node.rank(x) - 1,), node.op("abs", x)
    if node.shape(x)[-1] == 0:
        return node.full(0, node.shape(x)[:-1], node.dtype(x))
    if p == 0:
        return node.op("sum", node.cast(node.op("not_equal", x, 0), node.dtype(x)), axes=last)
    if p == 1:
        return node.op("sum", size, axes=last)
    if p == float("inf"):
        return node.op("max", size, axes=last)
    if p == 2:
        return node.op("sqrt", node.op("sum", node.op("square", x), axes=last))
    return node.op("power", node.op("sum", node.op("power", size, p), axes=last), 1 / p)


@converter("aten._pdist_forward.default")
def pdist(node: Node, x: Expr, p: float) -> Expr:
    rows, columns = np.triu_indices(node.require_fixed(node.shape(x)[0], "the number of rows"), 1)
    return norm(node, node.op("subtract", node.op("take", x, rows), node.op("take", x, columns)), p)
