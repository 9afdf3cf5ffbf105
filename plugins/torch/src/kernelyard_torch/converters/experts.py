"""Products of groups of rows with a matrix of their own each, as mixtures of experts have them."""

from __future__ import annotations

from kernelyard.plugins.api import Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("transformers.grouped_mm_fallback.default")
def grouped_matmul(node: Node, x: Expr, weights: Expr, ends: Expr) -> Expr:
    """Multiply rows (rows, in), sorted by expert, by their expert's (in, out) of weights (experts, in, out).

    ends: the row behind each expert's last, (experts,). As one sum of products, in whose kernel each row reads the
    weights of its expert where they lie: (experts, out, in), as models store them. Rows of no expert are zeros.
    """
    rows, experts = node.shape(x)[0], node.shape(weights)[0]
    work = "float32" if node.dtype(x) in ("bfloat16", "float16") else node.dtype(x)
    number = node.unsqueeze(node.op("arange", count=rows), 1)
    passed = node.op("greater_equal", number, node.unsqueeze(node.cast(ends, "int64"), 0))
    expert = node.op("sum", node.cast(passed, "int64"), axes=(1,))
    last = node.op("subtract", node.expr(experts, "int64"), 1)
    own = node.op("take", node.permute(weights, (0, 2, 1)), node.op("minimum", expert, last))
    products = node.op("multiply", node.cast(own, work), node.unsqueeze(node.cast(x, work), 1))
    result = node.cast(node.op("sum", products, axes=(2,)), node.dtype(x))
    return node.op(
        "where", node.unsqueeze(node.op("greater", expert, last), 1), node.full(0, (), node.dtype(x)), result
    )


@converter("aten._grouped_mm.default")
def grouped_mm(node: Node, x: Expr, weights: Expr, ends: Expr | None, bias: Expr | None, *_: object) -> Expr:
    if ends is None or bias is not None or (node.rank(x), node.rank(weights)) != (2, 3):
        return node.reject("groups other than those of rows are not supported")
    return grouped_matmul(node, x, weights, ends)
