"""Ensembles of trees: chains of loads side by side, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelyard import dims, dtypes, legalize
from kernelyard.ir import TensorType, get_op

from .conftest import compile_one, run_module


def random_trees(rng: np.random.Generator, trees: int, depth: int, features: int, dtype: str) -> list[np.ndarray]:
    """Trees of random shape, each node's children behind those of the nodes before it."""
    roots, feature, threshold, children = [], [], [], []
    for _ in range(trees):
        roots.append(len(feature))
        waiting = [(len(feature), 0)]
        feature.append(0), threshold.append(np.nan), children.append(len(feature) - 1)
        while waiting:
            node, level = waiting.pop()
            if level == depth or rng.random() < 0.2:
                continue
            first = len(feature)
            chosen = int(rng.integers(features))
            feature[node] = ~chosen if rng.random() < 0.5 else chosen
            threshold[node], children[node] = rng.integers(-3, 4), first
            for child in (first, first + 1):
                feature.append(0), threshold.append(np.nan), children.append(child)
                waiting.append((child, level + 1))
    tables = np.array(feature, np.int32), np.array(threshold, dtype), np.array(children, np.int32)
    return [np.array(roots, np.int32), *tables, rng.standard_normal((len(feature), 2)).astype(dtype)]


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    trees=st.sampled_from([1, 3, 8, 17, 40]),
    depth=st.integers(0, 6),
    rows=st.sampled_from([1, 2, 9, 33]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_kernels_agree_with_the_reference(seed: int, trees: int, depth: int, rows: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    tables = random_trees(rng, trees, depth, 3, dtype)
    x = rng.integers(-3, 4, (rows, 3)).astype(dtype)
    x[rng.random(x.shape) < 0.2] = np.nan
    op = get_op("ml.tree_ensemble")
    attrs = op.check_attributes({"depth": depth})
    types = [TensorType(each.shape, dtypes.from_numpy(each.dtype)) for each in (x, *tables)]
    types[0] = TensorType((dims.symbol("n"), 3), dtype)
    module = compile_one(legalize.legalize_call(op.name, types, attrs, op.infer_type(types, attrs)))
    (found,) = run_module(module, "kernel", [x, *tables], {"n": rows}, 1)
    assert op.reference is not None
    np.testing.assert_allclose(found, op.reference(x, *tables, **attrs), rtol=1e-5, atol=1e-5)


def test_tables_out_of_range_touch_no_other_memory() -> None:
    """Children and features beyond the tables are limited to them."""
    op = get_op("ml.tree_ensemble")
    x = np.ones((2, 3), np.float32)
    tables = [
        np.array([7], np.int32),
        np.array([10**6, -(10**6)], np.int32),
        np.array([2.0, 2.0], np.float32),
        np.array([10**9, -(10**9)], np.int32),
        np.array([[1.0], [2.0]], np.float32),
    ]
    attrs = op.check_attributes({"depth": 5})
    types = [TensorType(each.shape, dtypes.from_numpy(each.dtype)) for each in (x, *tables)]
    module = compile_one(legalize.legalize_call(op.name, types, attrs, op.infer_type(types, attrs)))
    (found,) = run_module(module, "kernel", [x, *tables], {}, 1)
    assert found.shape == (2, 1)
    assert np.isin(found, [1.0, 2.0]).all()


@pytest.mark.parametrize("trees", [1, 100])
def test_an_open_number_of_rows_is_one_kernel(trees: int) -> None:
    tables = random_trees(np.random.default_rng(0), trees, 4, 3, "float32")
    op = get_op("ml.tree_ensemble")
    attrs = op.check_attributes({"depth": 4})
    types = [TensorType(each.shape, dtypes.from_numpy(each.dtype)) for each in tables]
    types = [TensorType((dims.symbol("n"), 3), "float32"), *types]
    function = legalize.legalize_call(op.name, types, attrs, op.infer_type(types, attrs))
    module = compile_one(function)
    for rows in (1, 50):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        (found,) = run_module(module, "kernel", [x, *tables], {"n": rows}, 1)
        assert op.reference is not None
        np.testing.assert_allclose(found, op.reference(x, *tables, **attrs), rtol=1e-5, atol=1e-5)
