"""Deterministic arrays for the samples of operators."""

from __future__ import annotations

import zlib

import numpy as np

from kernelyard.dtypes import is_float, to_numpy


def _generator(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def floats(*shape: int, dtype: str = "float32", low: float = -3.0, high: float = 3.0, seed: int = 0) -> np.ndarray:
    """Draw uniform floats in [low, high)."""
    return np.asarray(_generator(shape, low, high, seed).uniform(low, high, shape)).astype(to_numpy(dtype))


def integers(*shape: int, dtype: str = "int64", low: int = -9, high: int = 9, seed: int = 0) -> np.ndarray:
    """Draw uniform integers in [low, high)."""
    return np.asarray(_generator(shape, low, high, seed).integers(low, high, shape)).astype(to_numpy(dtype))


def booleans(*shape: int, seed: int = 0) -> np.ndarray:
    """Return True and False, evenly."""
    return np.asarray(_generator(shape, seed).integers(0, 2, shape)).astype(bool)


def draw_numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Draw values of any dtype: floats in [-3, 3), small integers (non-negative where unsigned), booleans."""
    if dtype == "bool":
        return booleans(*shape, seed=seed)
    if is_float(dtype):
        return floats(*shape, dtype=dtype, seed=seed)
    return integers(*shape, dtype=dtype, low=0 if dtype.startswith("u") else -9, seed=seed)
