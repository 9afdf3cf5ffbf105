"""Support vector machines, as libsvm computes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.class_scores import Labels, finish
from kernelyard_onnx.converters.classical import floats_of, numbers, rows_of
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import LEARNING, converter
from kernelyard_onnx.values import Value

_LEAST_SHARE = 1e-7  # of two classes, as in libsvm


def kernel_values(node: Node, x: Expr, vectors: np.ndarray) -> Expr:
    """Return the kernel of each row of x (N, F) and each support vector (V, F): (N, V)."""
    kind = node.attr("kernel_type", "LINEAR")
    gamma, coef0, degree = (*map(float, node.attr("kernel_params") or ()), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        return _radial(node, x, vectors, gamma)
    product = node.op("matmul", x, np.ascontiguousarray(vectors.T))
    if kind == "LINEAR":
        return product
    inner = node.op("add", node.op("multiply", product, gamma), coef0)
    if kind == "SIGMOID":
        return node.op("tanh", inner)
    return node.op("power", inner, degree) if kind == "POLY" else node.reject(f"its kernel {kind!r} is unknown")


def _radial(node: Node, x: Expr, vectors: np.ndarray, gamma: float) -> Expr:
    """exp(-gamma * |x - v|^2) by a matrix product, around the vectors' middle: there is little to cancel."""
    middle = vectors.mean(0)
    vectors = vectors - middle
    x = node.op("subtract", x, middle)
    squares = node.op("sum", node.op("square", x), axes=(1,), keepdims=True)
    twice = node.op("matmul", x, np.ascontiguousarray(-2 * vectors.T))
    distance = node.op("add", node.op("add", twice, squares), (vectors**2).sum(1))
    return node.op("exp", node.op("multiply", node.op("maximum", distance, 0.0), -gamma))


def _decisions(node: Node, x: Expr, vectors: np.ndarray, coefficients: np.ndarray) -> Expr:
    """kernel(x, vectors) @ coefficients (V, decisions)."""
    return node.op("matmul", kernel_values(node, x, vectors), np.ascontiguousarray(coefficients))


@converter("SVMRegressor", domain=LEARNING)
def svm_regressor(node: Node) -> Expr:
    x = rows_of(node, floats_of(node, node.input(0)))
    count = int(node.attr("n_supports", 0))
    coefficients, rho = numbers(node, "coefficients", x), numbers(node, "rho", x)
    if count:
        vectors = numbers(node, "support_vectors", x).reshape(count, -1)
        total = _decisions(node, x, vectors, coefficients.reshape(count, 1))
    else:
        total = node.op("matmul", x, coefficients.reshape(-1, 1))
    total = node.op("add", total, rho[:1]) if len(rho) else total
    if node.attr("one_class", 0):
        inside, outside = (node.expr(sign, node.dtype(total)) for sign in (1.0, -1.0))
        total = node.op("where", node.op("greater", total, 0.0), inside, outside)
    return finish(node, total)


@converter("SVMClassifier", domain=LEARNING)
def svm_classifier(node: Node) -> Sequence[Value]:
    labels = Labels.of(node)
    x = rows_of(node, floats_of(node, node.input(0)))
    sizes = [int(size) for size in node.attr("vectors_per_class") or ()]
    if not sizes:
        return _linear(node, labels, x)
    if len(sizes) != len(labels):
        node.reject(f"it has vectors of {len(sizes)} classes and {len(labels)} labels")
    pairs = list(combinations(range(len(sizes)), 2))
    vectors = numbers(node, "support_vectors", x).reshape(sum(sizes), -1)
    given = numbers(node, "coefficients", x).reshape(len(sizes) - 1, sum(sizes))
    decisions = _decisions(node, x, vectors, _columns_of_pairs(given, sizes, pairs))
    decisions = node.op("add", decisions, numbers(node, "rho", x)[: len(pairs)])
    label = _count_votes(node, labels, decisions, pairs)
    if node.attr("prob_a"):
        return label, finish(node, _shares(node, decisions, pairs, len(sizes)))
    if len(pairs) == 1:
        decisions = node.concat([node.op("negative", decisions), decisions], 1)
    return label, finish(node, decisions)


def _columns_of_pairs(given: np.ndarray, sizes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return libsvm's coefficients (classes - 1, V) as a column for each pair of classes."""
    ends = np.cumsum([0, *sizes])
    columns = np.zeros((given.shape[1], len(pairs)), given.dtype)
    for column, (a, b) in enumerate(pairs):
        columns[ends[a] : ends[a + 1], column] = given[b - 1, ends[a] : ends[a + 1]]
        columns[ends[b] : ends[b + 1], column] = given[a, ends[b] : ends[b + 1]]
    return columns


def _linear(node: Node, labels: Labels, x: Expr) -> Sequence[Value]:
    coefficients = numbers(node, "coefficients", x).reshape(len(labels), -1)
    scores = node.op("matmul", x, np.ascontiguousarray(coefficients.T))
    return labels.of_scores(node, node.op("add", scores, numbers(node, "rho", x)[:1]))


def _count_votes(node: Node, labels: Labels, decisions: Expr, pairs: Sequence[tuple[int, int]]) -> Value:
    """Count votes: each decision votes for the first class of its pair if it is above 0, else for the second."""
    firsts, seconds = np.zeros((2, len(pairs), len(labels)), np.float32)
    for row, (a, b) in enumerate(pairs):
        firsts[row, a] = seconds[row, b] = 1
    wins = node.cast(node.op("greater", decisions, 0.0), "float32")
    votes = node.op("add", node.op("matmul", wins, firsts - seconds), seconds.sum(0))
    return labels.at(node, node.op("argmax", votes, axis=1, keepdims=False))


def _shares(node: Node, decisions: Expr, pairs: Sequence[tuple[int, int]], classes: int) -> Expr:
    """Return the probability of each class (N, classes).

    Each pair has one by Platt's scaling; together they are those of least square error (Wu, Lin and Weng, "Probability
    estimates for multi-class classification by pairwise coupling", second method).
    """
    dtype = np.float64 if node.dtype(decisions) == "float64" else np.float32
    a, b = (np.array(node.require_attr(name), dtype) for name in ("prob_a", "prob_b"))
    share = node.op("sigmoid", node.op("negative", node.op("add", node.op("multiply", decisions, a), b)))
    share = node.op("clip", share, min=_LEAST_SHARE, max=1 - _LEAST_SHARE)
    if classes == 2:
        return node.concat([share, node.op("subtract", 1.0, share)], 1)
    column = dict(zip(pairs, node.ops("split", share, axis=1, sections=(1,) * len(pairs)), strict=True))
    wins = {(j, i): node.op("subtract", 1.0, column[i, j]) for i, j in pairs} | column
    return _couple_probabilities(node, wins, classes)


def _couple_probabilities(node: Node, wins: dict[tuple[int, int], Expr], classes: int) -> Expr:
    """Minimize sum (r_ji p_i - r_ij p_j)^2 with sum p = 1: solve Q p = 1, and divide by the sum.

    Q is positive definite: elimination needs no pivots.
    """
    rows: list[list[Expr]] = []
    for i in range(classes):
        squares = [node.op("square", wins[j, i]) for j in range(classes) if j != i]
        diagonal = squares[0]
        for square in squares[1:]:
            diagonal = node.op("add", diagonal, square)
        product = lambda j, i=i: node.op("negative", node.op("multiply", wins[j, i], wins[i, j]))  # noqa: E731
        one = node.full(1.0, node.shape(diagonal), node.dtype(diagonal))
        rows.append([diagonal if j == i else product(j) for j in range(classes)] + [one])
    for pivot in range(classes):
        for row in range(classes):
            if row == pivot:
                continue
            factor = node.op("divide", rows[row][pivot], rows[pivot][pivot])
            for column in range(pivot + 1, classes + 1):
                change = node.op("multiply", factor, rows[pivot][column])
                rows[row][column] = node.op("subtract", rows[row][column], change)
    parts = [node.op("divide", rows[n][classes], rows[n][n]) for n in range(classes)]
    whole = node.concat(parts, 1)
    return node.op("divide", whole, node.op("sum", whole, axes=(1,), keepdims=True))
