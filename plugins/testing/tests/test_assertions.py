"""The shared assertions say no when they should, and say why."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard import dtypes
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import DeclinedMatch, PlacedRegion
from kernelyard.testing import assert_allclose, assert_declined, assert_offloaded, relative_error
from kernelyard.testing.assertions import TOLERANCES

REPORT = Report(
    "cpu",
    regions=(PlacedRegion("acme", "acme.conv2d", ("nn.conv2d", "nn.relu"), "acme_0", "node 'Conv_1'"),),
    declined=(DeclinedMatch("acme", "acme.matmul", "node 'MatMul_2'", "matmul", "dtype", "only float32"),),
)


def test_equal_within_the_tolerance_of_the_dtype() -> None:
    assert_allclose(np.float32([1, np.nan]), np.float32([1.00001, np.nan]))
    assert_allclose([1, 2], np.int64([1, 2]))
    with pytest.raises(AssertionError):
        assert_allclose(np.float32([1]), np.float32([1.01]))
    assert_allclose(np.float32([1]), np.float32([1.01]), "bfloat16")
    with pytest.raises(AssertionError):
        assert_allclose(np.int64([1]), np.int64([2]))


@pytest.mark.parametrize("dtype", sorted(TOLERANCES))
def test_every_float_is_compared(dtype: str) -> None:
    x = np.array([0.5, -1.0]).astype(dtypes.to_numpy(dtype))
    assert_allclose(x, x.copy())
    with pytest.raises(AssertionError):
        assert_allclose(x, -x)


def test_shapes_and_dtypes_must_be_the_same() -> None:
    with pytest.raises(AssertionError, match="shape"):
        assert_allclose(np.ones((1, 2)), np.ones(2))
    with pytest.raises(AssertionError, match="dtype"):
        assert_allclose(np.float32([1]), np.float64([1]))


def test_relative_error() -> None:
    assert relative_error(np.float32([1, 2]), np.float32([1, 4])) == 0.5
    assert relative_error(np.zeros(2), np.zeros(2)) == 0
    assert relative_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0


def test_offloading_is_read_off_the_report() -> None:
    assert_offloaded(REPORT, "acme")
    assert_offloaded(REPORT, "acme", "acme.conv2d", count=1)
    assert_offloaded(REPORT, "acme", pattern="acme.conv2d", at_least=1)
    with pytest.raises(AssertionError, match=r"expected at least 2 of acme acme\.conv2d, found 1"):
        assert_offloaded(REPORT, "acme", pattern="acme.conv2d", at_least=2)
    with pytest.raises(AssertionError, match=r"expected at least one of acme acme\.matmul, found 0") as caught:
        assert_offloaded(REPORT, "acme", "acme.matmul")
    assert "acme.matmul at node 'MatMul_2': dtype: only float32" in str(caught.value)
    with pytest.raises(AssertionError, match="expected 2"):
        assert_offloaded(REPORT, "acme", count=2)


def test_refusals_are_read_off_the_report() -> None:
    assert_declined(REPORT, "acme", "dtype")
    assert_declined(REPORT, "acme", "dtype", "acme.matmul")
    with pytest.raises(AssertionError, match="'layout'"):
        assert_declined(REPORT, "acme", "layout")
    with pytest.raises(AssertionError):
        assert_declined(object(), "acme", "dtype")
