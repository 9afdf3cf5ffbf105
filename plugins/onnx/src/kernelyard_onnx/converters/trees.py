"""Ensembles of trees, in the three forms that the standard has had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelyard.plugins.api import Expr
from kernelyard_onnx.converters.class_scores import POST_TRANSFORMS, Labels, post_transformed
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import LEARNING, converter
from kernelyard_onnx.tree_nodes import LEAF, MODES, Nodes, Tables, tables_of
from kernelyard_onnx.values import Value

AGGREGATES = {"SUM": "sum", "AVERAGE": "mean", "MIN": "min", "MAX": "max"}
_NEUTRAL = {"min": np.inf, "max": -np.inf}


@converter("TreeEnsembleRegressor", domain=LEARNING)
def tree_regressor(node: Node) -> Expr:
    aggregate = AGGREGATES.get(node.attr("aggregate_function", "SUM")) or node.reject("its aggregate is unknown")
    targets = int(node.require_attr("n_targets"))
    scores = _scores(node, "target", targets, aggregate)
    scores = _with_base(node, scores, targets)
    return node.cast(post_transformed(node, scores, node.attr("post_transform", "NONE")), "float32")


@converter("TreeEnsembleClassifier", domain=LEARNING)
def tree_classifier(node: Node) -> Sequence[Value]:
    labels = Labels.of(node)
    weights = _read_numbers(node, "class_weights", np.float64)
    ids = {int(each) for each in node.require_attr("class_ids")}
    all_positive = bool((weights >= 0).all())
    if len(labels) == 2 and len(ids) == 1:
        scores = _with_base(node, _scores(node, "class", 1, "sum"), 1)
        return labels.of_one_score(node, scores, threshold=0.5 if all_positive else 0.0, is_share=all_positive)
    scores = _with_base(node, _scores(node, "class", len(labels), "sum"), len(labels))
    return labels.of_scores(node, scores)


@converter("TreeEnsemble", since=5, domain=LEARNING)
def tree_ensemble(node: Node) -> Expr:
    x = node.input(0)
    modes, splits = node.require_attr("nodes_modes"), np.asarray(node.require_attr("nodes_splits"))
    count = len(splits)
    weights = np.asarray(node.require_attr("leaf_weights"))
    targets = np.array(node.require_attr("leaf_targetids"), np.int64)

    def following(kind: str) -> np.ndarray:
        """Node ids: leaves stand behind the nodes that compare."""
        at = np.array(node.require_attr(f"nodes_{kind}nodeids"), np.int64)
        is_leaf = np.array(node.require_attr(f"nodes_{kind}leafs"), bool)
        bound = np.where(is_leaf, len(weights), count)
        if ((at < 0) | (at >= bound)).any():
            node.reject(f"its nodes_{kind}nodeids lead to no node")
        return np.concatenate([np.where(is_leaf, at + count, at), np.zeros(len(weights), np.int64)])

    names = [MODES[int(mode)] for mode in np.asarray(modes).reshape(-1)] + [LEAF] * len(weights)
    nodes = Nodes(
        names,
        _pad(node.require_attr("nodes_featureids"), len(names), np.int64),
        _pad(splits, len(names), splits.dtype),
        following("true"),
        following("false"),
        _pad(node.attr("nodes_missing_value_tracks_true", ()), len(names), bool),
        _members(names, np.asarray(node.attr("membership_values", np.zeros(0)))),
    )
    values = np.zeros((len(names), int(node.attr("n_targets", 1))))
    values[count + np.arange(len(weights)), targets] = weights
    touched = np.zeros(values.shape, bool)
    touched[count + np.arange(len(weights)), targets] = True
    aggregate = AGGREGATES[("AVERAGE", "SUM", "MIN", "MAX")[int(node.attr("aggregate_function", 1))]]
    roots = [int(root) for root in node.require_attr("tree_roots")]
    scores = _ensemble(node, x, nodes, roots, (values, touched), aggregate)
    return node.cast(
        post_transformed(node, scores, POST_TRANSFORMS[int(node.attr("post_transform", 0))]), node.dtype(x)
    )


def _members(modes: Sequence[str], values: np.ndarray) -> dict[int, list[float]]:
    """Set end with NaN, one for each node that asks for membership."""
    ends = np.flatnonzero(np.isnan(values))
    askers = [number for number, mode in enumerate(modes) if mode == "BRANCH_MEMBER"]
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    return {asker: values[begin:end].tolist() for asker, begin, end in zip(askers, starts, ends, strict=True)}


def _pad(values: Any, count: int, dtype: Any) -> np.ndarray:
    result = np.zeros(count, dtype)
    result[: len(values)] = values
    return result


def _read_numbers(node: Node, name: str, dtype: Any) -> np.ndarray:
    """Return the numbers of an attribute, or of its form as a tensor of doubles."""
    given = node.attr(name)
    return np.array(node.attr(f"{name}_as_tensor", ()) if given is None else given, dtype).reshape(-1)


def _with_base(node: Node, scores: Expr, targets: int) -> Expr:
    """Add the scores that all rows begin with. A single one is that of the first, one of two that of the second."""
    base = _read_numbers(node, "base_values", np.float64)
    if not len(base):
        return scores
    if len(base) == 2 and targets == 1:
        base = base[1:]
    if len(base) not in (1, targets):
        node.reject(f"it has {len(base)} base values for {targets} targets")
    added = np.zeros(targets)
    added[: len(base)] = base
    return node.op("add", scores, added.astype(np.float64 if node.dtype(scores) == "float64" else np.float32))


def _scores(node: Node, kind: str, targets: int, aggregate: str) -> Expr:
    """Return the aggregated weights (N, targets) of an ensemble in the form of opset 1 and 3."""
    trees, ids = (np.array(node.require_attr(f"nodes_{name}"), np.int64) for name in ("treeids", "nodeids"))
    place = {key: number for number, key in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    modes = [LEAF if mode == LEAF else str(mode) for mode in node.require_attr("nodes_modes")]

    def following(name: str) -> np.ndarray:
        given = node.require_attr(f"nodes_{name}nodeids")
        found = [
            0 if mode == LEAF else place.get((tree, int(each)), -1)
            for mode, tree, each in zip(modes, trees.tolist(), given, strict=True)
        ]
        return np.array(found, np.int64) if -1 not in found else node.reject(f"its nodes_{name}nodeids lead to no node")

    yes, no = following("true"), following("false")
    missing = _pad(node.attr("nodes_missing_value_tracks_true", ()), len(modes), bool)
    splits = _read_numbers(node, "nodes_values", np.float64)
    nodes = Nodes(modes, np.array(node.require_attr("nodes_featureids"), np.int64), splits, yes, no, missing)
    values, touched = np.zeros((len(modes), targets)), np.zeros((len(modes), targets), bool)
    owners = zip(node.require_attr(f"{kind}_treeids"), node.require_attr(f"{kind}_nodeids"), strict=True)
    rows = np.array([place[int(tree), int(each)] for tree, each in owners], np.int64)
    columns = np.array(node.require_attr(f"{kind}_ids"), np.int64) if targets > 1 else np.zeros(len(rows), np.int64)
    np.add.at(values, (rows, columns), _read_numbers(node, f"{kind}_weights", np.float64))
    touched[rows, columns] = True
    _, first = np.unique(trees, return_index=True)
    return _ensemble(node, node.input(0), nodes, first.tolist(), (values, touched), aggregate)


def _ensemble(
    node: Node,
    x: Expr,
    nodes: Nodes,
    roots: Sequence[int],
    weights: tuple[np.ndarray, np.ndarray],
    aggregate: str,
) -> Expr:
    """Emit the operator. weights: of each node for each target, and which of them there are."""
    values, touched = weights
    dtype = "float64" if node.dtype(x) == "float64" else "float32"
    shape = node.shape(x) if node.rank(x) == 2 else node.reject("x has no rows")
    features = node.require_fixed(shape[1], "number of features")
    used = nodes.features[[mode != LEAF for mode in nodes.modes]]
    if len(used) and not 0 <= used.min() <= used.max() < features:
        node.reject(f"its nodes ask for feature {used.max()} of {features}")
    nodes = _as_compared(nodes, dtype)
    groups = _groups(nodes, roots, touched) if aggregate == "sum" else None
    if groups is not None:
        values, roots = values.sum(1, keepdims=True), groups
    elif aggregate in _NEUTRAL:
        values = np.where(touched, values, _NEUTRAL[aggregate])
    try:
        tables = tables_of(nodes, roots)
    except ValueError as error:
        node.reject(str(error))
    return _emit(
        node, node.cast(x, dtype), tables, values, {"aggregate": aggregate, "groups": touched.shape[1] if groups else 1}
    )


def _as_compared(nodes: Nodes, dtype: str) -> Nodes:
    """Return the nodes with thresholds of the dtype of x: `x <= t` holds for the same x of that dtype."""
    if dtype == "float64" or nodes.thresholds.dtype == np.float32:
        thresholds = nodes.thresholds.astype(dtype)
    else:
        thresholds = nodes.thresholds.astype(np.float32)
    return Nodes(nodes.modes, nodes.features, thresholds, nodes.yes, nodes.no, nodes.missing_is_yes, nodes.members)


def _groups(nodes: Nodes, roots: Sequence[int], touched: np.ndarray) -> list[int] | None:
    """Return the roots by target, where each tree has one target and every target as many trees; else None."""
    targets = touched.shape[1]
    if targets == 1 or len(roots) % targets:
        return None
    by_target: list[list[int]] = [[] for _ in range(targets)]
    for root in roots:
        seen, waiting, found = {root}, [root], set[int]()
        while waiting:
            each = waiting.pop()
            found.update(np.flatnonzero(touched[each]).tolist())
            for other in () if nodes.modes[each] == LEAF else (int(nodes.yes[each]), int(nodes.no[each])):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        if len(found) != 1:
            return None
        by_target[found.pop()].append(root)
    each = len(roots) // targets
    return [root for group in by_target for root in group] if all(len(g) == each for g in by_target) else None


def _emit(node: Node, x: Expr, tables: Tables, values: np.ndarray, attrs: dict[str, Any]) -> Expr:
    of_places = np.where((tables.leaves >= 0)[:, None], values[np.maximum(tables.leaves, 0)], 0)
    operands = (
        tables.roots,
        tables.features,
        tables.thresholds,
        tables.children,
        of_places.astype(node_dtype(node, x)),
    )
    return node.op("ml.tree_ensemble", x, *operands, depth=tables.depth, **attrs)


def node_dtype(node: Node, x: Expr) -> Any:
    """Return NumPy's name of a tensor's dtype, a float."""
    return np.float64 if node.dtype(x) == "float64" else np.float32
