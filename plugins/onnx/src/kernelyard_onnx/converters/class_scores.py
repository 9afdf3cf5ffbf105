"""Share what classifiers of ai.onnx.ml have in common: labels of numbers or text, transforms of scores, two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node
from kernelyard_onnx.values import LookedUpText, Value

POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
# Winitzki's approximation of the inverse error function, whose constant onnxruntime takes as well.
_WINITZKI = 0.147


def post_transformed(node: Node, scores: Expr, kind: str) -> Expr:
    """Emit a transform of the scores (N, classes).

    Raises: RejectedError for an unknown one.
    """
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return node.op("sigmoid", scores)
    if kind == "SOFTMAX":
        return node.op("nn.softmax", scores, axis=1)
    if kind == "SOFTMAX_ZERO":
        return _softmax_zero(node, scores)
    return _probit(node, scores) if kind == "PROBIT" else node.reject(f"its post_transform {kind!r} is unknown")


def _softmax_zero(node: Node, scores: Expr) -> Expr:
    """Softmax among the scores that are not 0; those stay 0."""
    is_zero = node.op("equal", scores, 0.0)
    largest = node.op("max", scores, axes=(1,), keepdims=True)
    zero, one = (node.expr(value, node.dtype(scores)) for value in (0.0, 1.0))
    powers = node.op("where", is_zero, zero, node.op("exp", node.op("subtract", scores, largest)))
    total = node.op("sum", powers, axes=(1,), keepdims=True)
    return node.op("divide", powers, node.op("where", node.op("equal", total, 0.0), one, total))


def _probit(node: Node, scores: Expr) -> Expr:
    """sqrt(2) * erfinv(2 * p - 1)."""
    x = node.op("subtract", node.op("multiply", scores, 2.0), 1.0)
    logs = node.op("log", node.op("subtract", 1.0, node.op("square", x)))
    v = node.op("add", node.op("multiply", logs, 0.5), 2 / (np.pi * _WINITZKI))
    root = node.op("sqrt", node.op("subtract", node.op("square", v), node.op("multiply", logs, 1 / _WINITZKI)))
    inverse = node.op("multiply", node.op("sign", x), node.op("sqrt", node.op("subtract", root, v)))
    return node.op("multiply", inverse, float(np.sqrt(2)))


def finish(node: Node, scores: Expr) -> Expr:
    """Return scores after the node's own transform, in float32."""
    return node.cast(post_transformed(node, scores, node.attr("post_transform", "NONE")), "float32")


@dataclass(frozen=True)
class Labels:
    """The labels of a classifier: an array of int64, or of `str` objects."""

    table: np.ndarray

    @classmethod
    def of(cls, node: Node, names: Sequence[str] = ("classlabels_int64s", "classlabels_ints")) -> Labels:
        """Read the labels of a node. Raises: RejectedError where it has none."""
        texts = node.attr("classlabels_strings")
        if texts:
            return cls(np.array(texts, object))
        found = next((node.attr(name) for name in names if node.attr(name)), None)
        return cls(np.array(found or node.reject("it has no class labels"), np.int64))

    def __len__(self) -> int:
        return len(self.table)

    def at(self, node: Node, indices: Expr) -> Value:
        """Return the labels at some indices, numbers or text."""
        if self.table.dtype == object:
            return LookedUpText(node.cast(indices, "int64"), self.table)
        if (self.table == np.arange(len(self.table))).all():
            return node.cast(indices, "int64")
        return node.op("take", self.table, indices, axis=0)

    def of_scores(self, node: Node, scores: Expr) -> Sequence[Value]:
        """Return the label of the largest score, and the scores."""
        best = node.op("argmax", scores, axis=1, keepdims=False)
        return self.at(node, best), finish(node, scores)

    def of_one_score(self, node: Node, score: Expr, *, threshold: float, is_share: bool) -> Sequence[Value]:
        """Return the label by whether the score (N, 1) of the second class is above a threshold, and both scores.

        is_share: the score of the first class is what is left of 1; else it is the opposite.
        """
        is_second = node.op("greater", node.reshape(score, (node.shape(score)[0],)), threshold)
        label = self.at(node, node.cast(is_second, "int64"))
        kind = node.attr("post_transform", "NONE")
        if kind == "PROBIT":
            return label, finish(node, score)
        is_opposite = kind == "LOGISTIC" or not is_share
        first = node.op("negative", score) if is_opposite else node.op("subtract", 1.0, score)
        both = node.concat([first, score], 1)
        return label, node.cast(node.op("sigmoid", both) if kind == "LOGISTIC" else both, "float32")
