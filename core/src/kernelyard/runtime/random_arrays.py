"""Random arrays, for inputs that nobody gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard import dtypes


def random_array(random: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return random numbers: standard normal floats, or integers 0 and 1, which are indices of most things.

    Raises: ValueError, OverflowError or MemoryError for a shape that no array can have.

    Example:
        >>> random_array(np.random.default_rng(0), (4,), "int64")
        array([1, 1, 1, 0])
    """
    if dtypes.is_float(dtype):
        return random.standard_normal(shape).astype(dtypes.to_numpy(dtype))
    return random.integers(0, 2, shape).astype(dtypes.to_numpy(dtype))
