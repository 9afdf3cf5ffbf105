"""Assertions about numbers and about placement, with one table of tolerances."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelyard import dtypes
from kernelyard.ops.numeric import NARROW_FLOATS
from kernelyard.runtime.device.tensor import as_array
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_words import NO_MATCH

# dtype: (relative, absolute). The relative part allows for a few roundings and another order of summation; integers
# and booleans must be equal.
TOLERANCES: dict[str, tuple[float, float]] = {
    "float64": (1e-9, 1e-10),
    "float32": (1e-4, 1e-5),
    "float16": (4e-3, 4e-3),
    "bfloat16": (3e-2, 3e-2),
    "float8_e4m3fn": (1.3e-1, 2e-2),
    "float8_e5m2": (2.6e-1, 2e-2),
}
EXACT = (0.0, 0.0)


def assert_allclose(actual: Any, expected: Any, dtype: str | None = None) -> None:
    """Assert that two tensors have one shape and dtype, and elements that differ within the tolerance of the dtype.

    `dtype` chooses another row of `TOLERANCES` than the expected tensor's own. NaN equals NaN.
    Raises: AssertionError with the worst element.

    Example:
        >>> assert_allclose(np.float32([1.0]), np.float32([1.00001]))
    """
    actual, expected = as_array(actual), as_array(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype.name}, expected {expected.dtype.name}"
    rtol, atol = TOLERANCES.get(dtype or dtypes.from_numpy(expected.dtype), EXACT)
    np.testing.assert_allclose(_comparable(actual), _comparable(expected), rtol=rtol, atol=atol, equal_nan=True)


def _comparable(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype in NARROW_FLOATS else array


def relative_error(actual: Any, expected: Any) -> float:
    """Return the largest difference, as a fraction of the largest expected magnitude: what networks are compared by.

    Example:
        >>> relative_error([1.0, 2.0], [1.0, 4.0])
        0.5
    """
    actual, expected = (as_array(value).astype(np.float64) for value in (actual, expected))
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    largest = float(np.abs(expected).max(initial=0.0))
    difference = float(np.abs(actual - expected).max(initial=0.0))
    return difference / largest if largest else difference


def assert_offloaded(
    executable_or_report: Any,
    backend: str,
    pattern: str | None = None,
    *,
    count: int | None = None,
    at_least: int = 1,
) -> None:
    """Assert that a backend took groups of ops, of one pattern if given: `at_least` so many, or exactly `count`.

    Raises: AssertionError that lists what was placed and the backend's reasons, near misses included.
    """
    report = report_of(executable_or_report)
    regions = [r for r in report.regions if r.backend == backend and pattern in (None, r.pattern)]
    if len(regions) == count if count is not None else len(regions) >= at_least:
        return
    found = [f"  placed: {r.backend} {r.pattern} ({', '.join(r.ops)})" for r in report.regions]
    number = f"at least {'one' if at_least == 1 else at_least}" if count is None else str(count)
    expected = f"expected {number} of {backend} {pattern or 'regions'}, found {len(regions)}"
    reasons = [*_refusals(report, backend), *_near_misses(report, backend, pattern)]
    raise AssertionError("\n".join([expected, *found, *reasons]))


def assert_declined(executable_or_report: Any, backend: str, code: str, pattern: str | None = None) -> None:
    """Assert that a backend refused something with that reason code.

    Raises: AssertionError that lists the refusals there were.
    """
    report = report_of(executable_or_report)
    if any(d.backend == backend and d.code == code and pattern in (None, d.pattern) for d in report.declined):
        return
    expected = f"expected {backend} to decline {pattern or 'something'} with {code!r}"
    raise AssertionError("\n".join([expected, *_refusals(report, backend)]))


def _refusals(report: Report, backend: str) -> list[str]:
    return [
        f"  declined: {d.pattern} at {d.node or d.op}: {d.code}: {d.message}"
        for d in report.declined
        if d.backend == backend
    ]


def _near_misses(report: Report, backend: str, pattern: str | None) -> list[str]:
    return [
        f"  near miss: {reason.pattern} at {node.name}: {reason.message}"
        for node in report.nodes
        for reason in node.reasons
        if reason.backend == backend and reason.code == NO_MATCH and pattern in (None, reason.pattern)
    ]


def report_of(executable_or_report: Any) -> Report:
    """Return the report of an executable, or the report itself."""
    report = getattr(executable_or_report, "report", executable_or_report)
    assert isinstance(report, Report), f"an executable or a report is needed, found {type(report).__name__}"
    return report
