"""Linear models, and what scales, encodes and selects the features of classical models (ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard import dims
from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.class_scores import Labels, finish
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import LEARNING, converter
from kernelyard_onnx.values import Maps, Value


def floats_of(node: Node, x: Expr) -> Expr:
    """Return features as floats: those of 64 bits stay, all others are computed in 32."""
    return x if node.dtype(x) == "float64" else node.cast(x, "float32")


def rows_of(node: Node, x: Expr) -> Expr:
    """Return features as (N, F): a vector is one row."""
    return x if node.rank(x) == 2 else node.reshape(x, (1, dims.product(node.shape(x))))


def numbers(node: Node, name: str, x: Expr) -> np.ndarray:
    """Return an attribute of numbers in the dtype of x."""
    return np.array(node.attr(name) or (), np.float64 if node.dtype(x) == "float64" else np.float32)


def _affine(node: Node, x: Expr, outputs: int) -> Expr:
    """x @ coefficients.T + intercepts."""
    coefficients = numbers(node, "coefficients", x)
    if not outputs or len(coefficients) % outputs:
        node.reject(f"it has {len(coefficients)} coefficients for {outputs} outputs")
    product = node.op("matmul", x, np.ascontiguousarray(coefficients.reshape(outputs, -1).T))
    intercepts = numbers(node, "intercepts", x)
    return node.op("add", product, intercepts) if len(intercepts) else product


@converter("LinearRegressor", domain=LEARNING)
def linear_regressor(node: Node) -> Expr:
    x = rows_of(node, floats_of(node, node.input(0)))
    return finish(node, _affine(node, x, int(node.attr("targets", 1))))


@converter("LinearClassifier", domain=LEARNING)
def linear_classifier(node: Node) -> Sequence[Value]:
    labels = Labels.of(node)
    x = rows_of(node, floats_of(node, node.input(0)))
    count = node.require_fixed(node.shape(x)[1], "number of features")
    outputs = len(node.require_attr("coefficients")) // max(count, 1)
    scores = _affine(node, x, outputs)
    if outputs == 1 and len(labels) == 2:
        return labels.of_one_score(node, scores, threshold=0.0, is_share=True)
    return labels.of_scores(node, scores)


@converter("Scaler", domain=LEARNING)
def scaler(node: Node) -> Expr:
    x = floats_of(node, node.input(0))
    offset, scale = numbers(node, "offset", x), numbers(node, "scale", x)
    if not len(offset) or not len(scale):
        node.reject("it has no offset or no scale")
    return node.cast(node.op("multiply", node.op("subtract", x, offset), scale), "float32")


@converter("Normalizer", domain=LEARNING)
def normalizer(node: Node) -> Expr:
    """Divide rows by their largest number, their sum, or their length; rows of zeros stay."""
    x = floats_of(node, node.input(0))
    axis, norm = (node.rank(x) - 1,), node.attr("norm", "MAX")
    if norm == "MAX":
        divisor = node.op("max", x, axes=axis, keepdims=True)
    elif norm == "L1":
        divisor = node.op("sum", node.op("abs", x), axes=axis, keepdims=True)
    elif norm == "L2":
        divisor = node.op("sqrt", node.op("sum", node.op("square", x), axes=axis, keepdims=True))
    else:
        node.reject(f"its norm {norm!r} is unknown")
    one = node.expr(1.0, node.dtype(x))
    divisor = node.op("where", node.op("equal", divisor, 0.0), one, divisor)
    return node.cast(node.op("divide", x, divisor), "float32")


@converter("Binarizer", domain=LEARNING)
def binarizer(node: Node) -> Expr:
    x = node.input(0)
    threshold = node.cast(node.full(node.attr("threshold", 0.0), (), "float32"), node.dtype(x))
    return node.cast(node.op("greater", x, threshold), node.dtype(x))


@converter("Imputer", domain=LEARNING)
def imputer(node: Node) -> Expr:
    """Replace numbers equal to one that stands for missing ones, NaN too."""
    x = node.input(0)
    is_float = node.dtype(x).startswith("float")
    kind = "floats" if is_float else "int64s"
    dtype = np.dtype(node.dtype(x))
    imputed = np.array(node.attr(f"imputed_value_{kind}") or node.reject(f"it has no imputed_value_{kind}"), dtype)
    replaced = dtype.type(node.attr(f"replaced_value_{kind[:-1]}", 0))
    is_missing = node.op("isnan", x) if np.isnan(replaced) else node.op("equal", x, np.asarray(replaced))
    return node.op("where", is_missing, imputed, x)


@converter("FeatureVectorizer", domain=LEARNING)
def feature_vectorizer(node: Node) -> Expr:
    sizes = node.attr("inputdimensions") or (None,) * len(node.inputs)
    parts: list[Expr] = []
    for x, size in zip(node.require_inputs(), sizes, strict=True):
        part = node.cast(rows_of(node, x), "float32")
        found = node.require_fixed(node.shape(part)[1], "number of features")
        if size is not None and size != found:
            node.reject(f"an input has {found} features, not {size}")
        parts.append(part)
    return node.concat(parts, 1)


@converter("ArrayFeatureExtractor", domain=LEARNING)
def array_feature_extractor(node: Node) -> Expr:
    """Take features by their indices; those of a vector come as one row."""
    x, indices = node.input(0), node.input(1)
    taken = node.op("take", x, node.reshape(indices, (dims.product(node.shape(indices)),)), axis=node.rank(x) - 1)
    return taken if node.rank(x) > 1 else node.unsqueeze(taken, 0)


@converter("ZipMap", domain=LEARNING)
def zip_map(node: Node) -> Maps:
    """Return a map for each row, in the order of its keys."""
    keys = tuple(node.attr("classlabels_strings") or node.attr("classlabels_int64s") or ())
    scores = rows_of(node, node.input(0))
    if node.shape(scores)[1] != len(keys):
        node.reject(f"it has {len(keys)} labels for {node.shape(scores)[1]} scores")
    order = sorted(range(len(keys)), key=lambda n: keys[n])
    if order != list(range(len(keys))):
        scores = node.op("take", scores, np.array(order), axis=1)
    return Maps(tuple(keys[n] for n in order), scores)
