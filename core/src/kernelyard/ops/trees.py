"""Ensembles of decision trees: random forests, boosted trees, isolation forests.

Sizes: N rows of F features, T trees, M nodes of all trees together, C columns of a leaf's values. A node is a row of
three tables. It compares a feature with its threshold, and leads to the node `children` where the feature is larger, or
to the one behind that where it is not. A leaf leads to itself: its threshold is NaN, which nothing is compared to.
Where the feature is NaN, a node leads to `children`, and to the one behind it where its entry of `features` is
inverted (`~index`). Other comparisons are made of such nodes.

Trees come in `groups` of equal number, one after the other: the trees of a class. What the leaves of a group have is
aggregated, and the results of the groups follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard.dims import Dim
from kernelyard.dtypes import FLOATS
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare
from kernelyard.ops.samples import floats
from kernelyard.ops.type_rules import require, require_dtype, require_multiple, require_rank, require_same_dtype, unify

AGGREGATES = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}


def _ensemble_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, roots, features, thresholds, children, values = types
    require_dtype(x, FLOATS)
    require_same_dtype((x, thresholds))
    require_dtype(values, FLOATS, "the values of leaves")
    for type_, rank, what in ((x, 2, "x"), (roots, 1, "the roots"), (values, 2, "the values of leaves")):
        require_rank(type_, rank, what)
    for type_, what in ((features, "the features"), (thresholds, "the thresholds"), (children, "the children")):
        require_rank(type_, 1, what)
        unify(type_.shape[0], values.shape[0], f"{what} and the values of leaves")
    for type_, what in ((roots, "the roots"), (features, "the features"), (children, "the children")):
        require_dtype(type_, ("int32",), what)
    trees, groups, aggregate = roots.shape[0], attrs["groups"], attrs["aggregate"]
    require(groups >= 1 and (not isinstance(trees, int) or trees >= groups), "a group has no tree", found=trees)
    require_multiple(trees, groups, "the trees do not come in groups of equal number")
    require(aggregate in AGGREGATES, "unknown aggregate", found=aggregate, expected=", ".join(AGGREGATES))
    require(attrs["depth"] >= 0, "there is no such depth", found=attrs["depth"], expected="0 or more")
    return TensorType((x.shape[0], groups * values.shape[1]), values.dtype)


def _flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    return types[0].shape[0] * types[1].shape[0] * (attrs["depth"] + types[5].shape[1])


def _ensemble(
    x: np.ndarray,
    roots: np.ndarray,
    features: np.ndarray,
    thresholds: np.ndarray,
    children: np.ndarray,
    values: np.ndarray,
    *,
    depth: int,
    groups: int,
    aggregate: str,
) -> np.ndarray:
    rows = np.arange(len(x))[:, None]
    nodes = np.broadcast_to(roots, (len(x), len(roots)))
    for _ in range(depth):
        feature = features[nodes]
        seen = x[rows, np.where(feature < 0, ~feature, feature)]
        is_second = (seen <= thresholds[nodes]) | ((feature < 0) & np.isnan(seen))
        nodes = children[nodes] + is_second
    leaves = values[nodes].reshape(len(x), groups, len(roots) // groups, values.shape[1]).astype(np.float64)
    return AGGREGATES[aggregate](leaves, axis=2).reshape(len(x), -1).astype(values.dtype)


# Two trees: x[0] <= 0.5 ? (x[2] <= -1 ? leaf 4 : leaf 3) : leaf 1, where NaN of x[2] counts as smaller; a leaf alone.
_ROOTS = np.array([0, 5], np.int32)
_FEATURES = np.array([0, 0, ~2, 0, 0, 0], np.int32)
_THRESHOLDS = np.array([0.5, np.nan, -1.0, np.nan, np.nan, np.nan])
_CHILDREN = np.array([1, 1, 3, 3, 4, 5], np.int32)


def _operands(rows: int = 5, columns: int = 1, repeat: int = 1, dtype: str = "float32") -> tuple[np.ndarray, ...]:
    """Return operands with so many copies of the two trees."""
    x = floats(rows, 3, dtype=dtype)
    starts = np.repeat(np.arange(repeat, dtype=np.int32) * len(_FEATURES), len(_ROOTS))
    roots = np.tile(_ROOTS, repeat) + starts
    children = np.tile(_CHILDREN, repeat) + np.repeat(np.arange(repeat, dtype=np.int32) * 6, 6)
    thresholds = np.tile(_THRESHOLDS, repeat).astype(dtype)
    return x, roots, np.tile(_FEATURES, repeat), thresholds, children, floats(6 * repeat, columns, dtype=dtype)


def _missing(x: np.ndarray) -> np.ndarray:
    with_missing = x.copy()
    with_missing.reshape(-1)[::2] = np.nan
    return with_missing


def _samples() -> Iterator[Sample]:
    x, *trees = _operands()
    yield Sample((x, *trees), {"depth": 2}, "a tree and a leaf")
    yield Sample((_missing(x), *trees), {"depth": 2}, "missing values")
    yield Sample(_operands(1, 1, 20), {"depth": 2}, "one row, many trees")
    yield Sample(_operands(41, 3, 20), {"depth": 2}, "three columns")
    yield Sample(_operands(40, 1, 9), {"depth": 2, "groups": 3, "aggregate": "mean"}, "a group for each class")
    for aggregate in ("min", "max"):
        yield Sample(_operands(4, 2, 3), {"depth": 2, "aggregate": aggregate}, aggregate)
    yield Sample(_operands(6, 1, 10, "float64"), {"depth": 2}, "float64")
    yield Sample(_operands(3), {"depth": 0}, "roots alone")


declare(
    "ml.tree_ensemble",
    ("x", "roots", "features", "thresholds", "children", "values"),
    _ensemble_type,
    _ensemble,
    attributes={
        "depth": Attribute("int"),
        "groups": Attribute("int", 1),
        "aggregate": Attribute("str", "sum"),
    },
    samples=_samples,
    flops=_flops,
    summary="the values of the leaves that each row (N, F) reaches in decision trees, aggregated over groups of trees",
)
