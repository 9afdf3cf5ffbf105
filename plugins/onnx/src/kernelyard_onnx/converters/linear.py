"""Matrix products and Einsum."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard import dims
from kernelyard.plugins.api import Elimination, Expr
from kernelyard_onnx.converters.convolution import subtract_zero_point
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import converter


@converter("MatMul")
def matrix_product(node: Node) -> Expr:
    return node.op("matmul", node.input(0), node.input(1))


@converter("Gemm")
def general_matrix_product(node: Node) -> Expr:
    a, b, c = node.input(0), node.input(1), node.optional(2)
    a = node.permute(a, (1, 0)) if node.attr("transA", 0) else a
    b = node.permute(b, (1, 0)) if node.attr("transB", 0) else b
    product = _scale(node, node.op("matmul", a, b), node.attr("alpha", 1.0))
    beta = node.attr("beta", 1.0)
    return product if c is None or beta == 0 else node.op("add", product, _scale(node, c, beta))


def _scale(node: Node, x: Expr, factor: float) -> Expr:
    return x if factor == 1 else node.op("multiply", x, factor)


@converter("MatMulInteger", since=10)
def integer_matrix_product(node: Node) -> Expr:
    a, b = node.cast(node.input(0), "int32"), node.cast(node.input(1), "int32")
    a = subtract_zero_point(node, a, node.optional(2), node.rank(a) - 2 if node.rank(a) > 1 else None)
    b = subtract_zero_point(node, b, node.optional(3), node.rank(b) - 1)
    return node.op("matmul", a, b)


# --- Einsum -----------------------------------------------------------------------------------------------------------
@converter("Einsum", since=12)
def einstein_sum(node: Node) -> Expr:
    """Pairwise from the left: each pair is one batched matrix product."""
    operands = node.require_inputs()
    terms, result = _parse(node, node.require_attr("equation"), [node.rank(x) for x in operands])
    value, labels = _without_repeats(node, operands[0], terms[0])
    for index in range(1, len(operands)):
        other, other_labels = _without_repeats(node, operands[index], terms[index])
        needed = set(result).union(*terms[index + 1 :])
        value, labels = _contract(node, value, labels, other, other_labels, needed)
    value, labels = _sum_out(node, value, labels, set(result))
    return node.permute(value, [labels.index(label) for label in result])


def _parse(node: Node, equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """Return the labels of each operand and of the result; the axes of an ellipsis are labelled "0", "1", ... from the
    right.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        node.reject(f"its equation {equation!r} has {len(texts)} terms for {len(ranks)} inputs")
    terms = [_labels(text, rank - len(text.replace("...", ""))) for text, rank in zip(texts, ranks, strict=True)]
    if any(len(term) != rank for term, rank in zip(terms, ranks, strict=True)):
        node.reject(f"its equation {equation!r} does not fit the ranks of its inputs")
    hidden = max((sum(label.isdigit() for label in term) for term in terms), default=0)
    if arrow:
        return terms, _labels(right, hidden)
    used = [label for term in terms for label in term]
    once = sorted(label for label in set(used) if used.count(label) == 1 and not label.isdigit())
    return terms, [*(str(hidden - 1 - i) for i in range(hidden)), *once]


def _labels(text: str, hidden: int) -> list[str]:
    before, dots, after = text.partition("...")
    return [*before, *((str(hidden - 1 - i) for i in range(hidden)) if dots else ()), *after]


def _without_repeats(node: Node, x: Expr, labels: list[str]) -> tuple[Expr, list[str]]:
    """Take the diagonal of axes that an operand labels twice."""
    labels = list(labels)
    for label in list(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            size, rank = node.shape(x)[first], node.rank(x)
            steps = node.op("arange", start=0, step=1, count=size, dtype="int64")
            same = node.op("equal", node.along(steps, first, rank), node.along(steps, second, rank))
            zero = node.full(0, (), node.dtype(x))
            x = node.op("sum", node.op("where", same, x, zero), axes=(second,), keepdims=False)
            del labels[second]
    return x, labels


def _sum_out(node: Node, x: Expr, labels: list[str], needed: set[str]) -> tuple[Expr, list[str]]:
    axes = tuple(axis for axis, label in enumerate(labels) if label not in needed)
    return (node.op("sum", x, axes=axes, keepdims=False) if axes else x), _among(labels, needed)


def _among(labels: list[str], chosen: set[str]) -> list[str]:
    return [label for label in labels if label in chosen]


def _contract(
    node: Node, a: Expr, a_labels: list[str], b: Expr, b_labels: list[str], needed: set[str]
) -> tuple[Expr, list[str]]:
    """Multiply once: labels of both that are needed later are batch axes, those of both that are not are summed."""
    a, a_labels = _sum_out(node, a, a_labels, needed | set(b_labels))
    b, b_labels = _sum_out(node, b, b_labels, needed | set(a_labels))
    shared = set(a_labels) & set(b_labels)
    batch, summed = _among(a_labels, shared & needed), _among(a_labels, shared - needed)
    rows, columns = _among(a_labels, needed - shared), _among(b_labels, needed - shared)
    a_sizes = dict(zip(a_labels, node.shape(a), strict=True))
    b_sizes = dict(zip(b_labels, node.shape(b), strict=True))
    if any(a_sizes[label] != b_sizes[label] for label in summed):
        node.reject("it contracts an axis of size 1 that is broadcast")
    sizes = {**a_sizes, **b_sizes, **{label: dims.broadcast(a_sizes[label], b_sizes[label]) for label in batch}}

    def matrices(x: Expr, labels: list[str], first: list[str], second: list[str]) -> Expr:
        x = node.permute(x, [labels.index(label) for label in (*batch, *first, *second)])
        groups = [dims.product(sizes[label] for label in group) for group in (first, second)]
        return node.reshape(x, (*node.shape(x)[: len(batch)], *groups))

    product = node.op("matmul", matrices(a, a_labels, rows, summed), matrices(b, b_labels, summed, columns))
    labels = [*batch, *rows, *columns]
    return node.reshape(product, [sizes[label] for label in labels]), labels


@converter("Det", since=11)
def determinant(node: Node) -> Expr:
    """By elimination, which becomes kernels, where the matrices are small."""
    x, dtype = node.input(0), node.dtype(node.input(0))
    if not Elimination.is_possible(node, x):
        return node.op("det", x)
    x = node.cast(x, "float32") if dtype == "float16" else x
    return node.cast(Elimination.of(node, x).determinant, dtype)
