"""Operators of classical models against onnxruntime, and decision trees of every kind against a walk by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import kernelyard as ky
from kernelyard.ops.trees import AGGREGATES
from kernelyard_onnx.importer import import_structured
from kernelyard_onnx.session import Session
from kernelyard_onnx.tree_nodes import LEAF, MODES, Nodes, tables_of

RNG = np.random.default_rng(3)
X = RNG.normal(size=(9, 4)).astype(np.float32)
X[2, 1] = np.nan
FULL = np.nan_to_num(X)
TYPES = {np.dtype(object): TensorProto.STRING}


def model_of(
    op: str, data: dict[str, np.ndarray], outputs: int = 1, version: int = 3, **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one node of ai.onnx.ml, whose number of rows is open."""
    infos = []
    for name, array in data.items():
        type_ = TYPES.get(array.dtype) or helper.np_dtype_to_tensor_dtype(array.dtype)
        infos.append(helper.make_tensor_value_info(name, type_, [f"rows of {name}", *array.shape[1:]]))
    names = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, list(data), names, domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph([node], op, infos, [onnx.ValueInfoProto(name=name) for name in names])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def check(model: onnx.ModelProto, data: dict[str, np.ndarray], tolerance: float = 1e-5) -> list[Any]:
    """Run a model in both; the results."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, data)
    ours = Session(model).run(data)
    for right, found in zip(theirs, ours, strict=True):
        if isinstance(right, list):
            assert [list(row) for row in right] == [list(row) for row in found]
            right, found = (np.array([list(row.values()) for row in rows]) for rows in (right, found))
        assert found.shape == right.shape
        if right.dtype.kind in "OUi":
            assert found.tolist() == right.tolist()
        else:
            np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance)
    return ours


FEATURES: list[tuple[str, dict[str, np.ndarray], dict[str, Any]]] = [
    ("Scaler", {"x": FULL}, {"offset": [0.5, 1, 2, 3], "scale": [1.0, 2, 0.5, 3]}),
    ("Scaler", {"x": FULL}, {"offset": [0.5], "scale": [2.0]}),
    ("Normalizer", {"x": FULL}, {"norm": "L1"}),
    ("Normalizer", {"x": FULL}, {"norm": "L2"}),
    ("Normalizer", {"x": np.abs(FULL)}, {"norm": "MAX"}),
    ("Binarizer", {"x": FULL}, {"threshold": 0.25}),
    ("Imputer", {"x": X}, {"imputed_value_floats": [1.0, 2, 3, 4], "replaced_value_float": float("nan")}),
    ("Imputer", {"x": np.arange(6).reshape(3, 2)}, {"imputed_value_int64s": [7], "replaced_value_int64": 2}),
    ("FeatureVectorizer", {"a": FULL, "b": FULL[:, :2]}, {"inputdimensions": [4, 2]}),
    ("ArrayFeatureExtractor", {"x": FULL, "at": np.array([3, 0, 3])}, {}),
    ("OneHotEncoder", {"x": np.array([[1], [5], [1]])}, {"cats_int64s": [5, 1, 9]}),
    (
        "LabelEncoder",
        {"x": np.array([1, 5, 7])},
        {"keys_int64s": [5, 1], "values_floats": [0.5, 1.5], "default_float": -2.0},
    ),
    ("LabelEncoder", {"x": np.array([1, 5, 7])}, {"keys_int64s": [5, 1], "values_strings": ["five", "one"]}),
    (
        "CategoryMapper",
        {"x": np.array([[1], [2]])},
        {"cats_int64s": [2, 3], "cats_strings": ["b", "c"], "default_string": "?"},
    ),
    (
        "LinearRegressor",
        {"x": FULL},
        {"coefficients": [1.0, 2, 3, 4, 5, 6, 7, 8], "intercepts": [0.5, 1], "targets": 2},
    ),
    ("ZipMap", {"x": np.abs(FULL)}, {"classlabels_strings": ["a", "b", "c", "d"]}),
    ("ZipMap", {"x": np.abs(FULL[:, :2])}, {"classlabels_int64s": [4, 2]}),
]


@pytest.mark.parametrize(
    ("op", "data", "attributes"), FEATURES, ids=[f"{op}-{n}" for n, (op, *_) in enumerate(FEATURES)]
)
def test_features(op, data, attributes):
    check(model_of(op, data, **attributes), data)


def test_nan_is_a_label_since_opset_4():
    data = {"x": np.float32([1, np.nan, 7])}
    found = check(model_of("LabelEncoder", data, version=4, keys_floats=[np.nan, 1.0], values_int64s=[4, 5]), data)
    assert found[0].tolist() == [5, 4, -1]


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_linear_classifiers(post):
    three = {"coefficients": RNG.normal(size=12).tolist(), "intercepts": [0.1, 0.2, 0.3]}
    labels = {"classlabels_strings": ["a", "b", "c"]}
    check(model_of("LinearClassifier", {"x": FULL}, 2, post_transform=post, **three, **labels), {"x": FULL})


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vector_machines(kernel):
    vectors = RNG.normal(size=(7, 4))
    common = {
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.5, 2.0],
        "support_vectors": vectors.reshape(-1).tolist(),
    }
    once = {"coefficients": RNG.normal(size=7).tolist(), "rho": [0.2], "n_supports": 7}
    check(model_of("SVMRegressor", {"x": FULL}, **common, **once), {"x": FULL}, 1e-4)
    classes = {
        "coefficients": RNG.normal(size=14).tolist(),
        "rho": [0.1, -0.2, 0.3],
        "vectors_per_class": [3, 2, 2],
        "classlabels_ints": [4, 5, 9],
    }
    check(model_of("SVMClassifier", {"x": FULL}, 2, **common, **classes), {"x": FULL}, 1e-4)


def test_probabilities_of_three_classes_are_coupled():
    attributes = {
        "kernel_type": "LINEAR",
        "kernel_params": [0.0, 0.0, 0.0],
        "support_vectors": RNG.normal(size=28).tolist(),
        "coefficients": RNG.normal(size=14).tolist(),
        "rho": [0.1, -0.2, 0.3],
        "prob_a": [-1.0, -0.8, -1.2],
        "prob_b": [0.1, 0.0, -0.1],
        "vectors_per_class": [3, 2, 2],
        "classlabels_ints": [0, 1, 2],
    }
    model = model_of("SVMClassifier", {"x": FULL}, 2, **attributes)
    _, shares = check(model, {"x": FULL}, 5e-3)  # libsvm stops at 0.005 of a third
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)


# --- trees ------------------------------------------------------------------------------------------------------------
def stumps(modes: list[str], classes: bool, targets: int = 1) -> dict[str, Any]:
    """Return the attributes of trees of one comparison each."""
    prefix = "class" if classes else "target"
    rows = [(tree, number) for tree in range(len(modes)) for number in range(3)]
    leaves = [row for row in rows if row[1]]
    return {
        "nodes_treeids": [tree for tree, _ in rows],
        "nodes_nodeids": [number for _, number in rows],
        "nodes_modes": [modes[tree] if number == 0 else LEAF for tree, number in rows],
        "nodes_featureids": [tree % 4 if number == 0 else 0 for tree, number in rows],
        "nodes_values": [float(FULL[tree % 9, tree % 4]) if number == 0 else 0.0 for tree, number in rows],
        "nodes_truenodeids": [1 if number == 0 else 0 for _, number in rows],
        "nodes_falsenodeids": [2 if number == 0 else 0 for _, number in rows],
        "nodes_missing_value_tracks_true": [tree % 2 for tree, _ in rows],
        f"{prefix}_treeids": [tree for tree, _ in leaves],
        f"{prefix}_nodeids": [number for _, number in leaves],
        f"{prefix}_ids": [tree % targets for tree, _ in leaves],
        f"{prefix}_weights": [0.25 * (number + tree) for tree, number in leaves],
    }


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("mode", MODES[:-1])
def test_regressors_compare_as_onnxruntime_does(mode, aggregate):
    attributes = stumps([mode] * 6, False) | {"aggregate_function": aggregate, "n_targets": 1, "base_values": [0.5]}
    check(model_of("TreeEnsembleRegressor", {"x": X}, **attributes), {"x": X})


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("sign", [1, -1])
def test_two_classes_of_one_score(post, sign):
    attributes = stumps(["BRANCH_LEQ"] * 5, True) | {"classlabels_int64s": [3, 7], "post_transform": post}
    attributes["class_weights"] = [w * 0.2 * (sign if n % 2 else 1) for n, w in enumerate(attributes["class_weights"])]
    check(model_of("TreeEnsembleClassifier", {"x": FULL}, 2, **attributes), {"x": FULL})


@pytest.mark.parametrize("trees", [6, 7], ids=["as many trees for each class", "not as many"])
def test_three_classes_with_names(trees):
    attributes = stumps(["BRANCH_LT"] * trees, True, 3)
    attributes |= {"classlabels_strings": ["a", "b", "c"], "post_transform": "SOFTMAX"}
    model = model_of("TreeEnsembleClassifier", {"x": FULL}, 2, **attributes)
    labels, _ = check(model, {"x": FULL})
    assert labels.dtype == object
    module = import_structured(model, {}).module
    (call,) = [b.value for b in module["main"].bindings if getattr(b.value, "op_name", "") == "ml.tree_ensemble"]
    assert call.attrs["groups"] == (3 if trees == 6 else 1)


def test_ensembles_are_generated_kernels():
    attributes = stumps(["BRANCH_LEQ"] * 4, False) | {"n_targets": 1}
    exe = ky.compile(model_of("TreeEnsembleRegressor", {"x": X}, **attributes))
    assert [node.backend for node in exe.report.nodes if node.op == "ml.tree_ensemble"] == ["native-cpu"]


def walked(nodes: Nodes, root: int, row: np.ndarray) -> int:
    """Return the leaf that a row reaches, by the standard's words."""
    at = root
    while nodes.modes[at] != LEAF:
        value, limit = row[nodes.features[at]], nodes.thresholds[at]
        holds = {
            "BRANCH_LEQ": value <= limit,
            "BRANCH_LT": value < limit,
            "BRANCH_GTE": value >= limit,
            "BRANCH_GT": value > limit,
            "BRANCH_EQ": value == limit,
            "BRANCH_NEQ": value != limit,
            "BRANCH_MEMBER": value in nodes.members.get(at, ()),
        }[nodes.modes[at]]
        at = int((nodes.yes if holds or (np.isnan(value) and nodes.missing_is_yes[at]) else nodes.no)[at])
    return at


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 12))
def test_tables_lead_where_the_nodes_do(seed, inner):
    """Random graphs of nodes, each leading to later ones, which several may share."""
    rng = np.random.default_rng(seed)
    count = inner + 3
    modes = [str(rng.choice(MODES)) if number < inner else LEAF for number in range(count)]
    limits = rng.choice([-np.inf, -1.0, 0.0, 1.0, 2.0, np.inf], count)
    following = [
        [int(rng.integers(number + 1, count)) if number < inner else 0 for number in range(count)] for _ in "yn"
    ]
    members = {n: rng.choice([-1.0, 0.0, 1.0], 2).tolist() for n, mode in enumerate(modes) if mode == "BRANCH_MEMBER"}
    missing = rng.random(count) < 0.5
    nodes = Nodes(modes, rng.integers(0, 2, count), limits, *map(np.array, following), missing, members)
    tables = tables_of(nodes, [0])
    assert ((tables.children >= 0) & (tables.children < len(tables.children))).all()
    for row in np.array([[a, b] for a in (-np.inf, -1, 0, 1, 2, np.inf, np.nan) for b in (-1, 0.5, 1, np.nan)]):
        at = tables.roots[0]
        for _ in range(tables.depth):
            feature = tables.features[at]
            value = row[~feature if feature < 0 else feature]
            at = tables.children[at] + (value <= tables.thresholds[at] or (feature < 0 and np.isnan(value)))
        assert tables.leaves[at] == walked(nodes, 0, row)


def test_circles_are_refused():
    nodes = Nodes(
        ["BRANCH_LEQ"] * 2, np.zeros(2, int), np.zeros(2), np.array([1, 0]), np.array([1, 0]), np.zeros(2, bool)
    )
    with pytest.raises(ValueError, match="circle"):
        tables_of(nodes, [0])


def test_every_aggregate_of_the_standard_is_there():
    assert set(AGGREGATES) == {"sum", "mean", "min", "max"}
