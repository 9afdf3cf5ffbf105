"""Random numbers: every call draws new ones, unless a seed is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare
from kernelyard.ops.type_rules import FLOATS, require

_ATTRIBUTES = {
    "shape": Attribute("dims"),
    "dtype": Attribute("dtype", "float32"),
    "seed": Attribute("int", None),
}


def _type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require(attrs["dtype"] in FLOATS, "random numbers must be floats", found=attrs["dtype"], expected=", ".join(FLOATS))
    return TensorType(attrs["shape"], attrs["dtype"])


def _uniform(*, shape: tuple[int, ...], low: float, high: float, dtype: str, seed: int | None) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).uniform(low, high, shape)).astype(to_numpy(dtype))


def _normal(*, shape: tuple[int, ...], mean: float, scale: float, dtype: str, seed: int | None) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).normal(mean, scale, shape)).astype(to_numpy(dtype))


def _samples() -> Iterator[Sample]:
    yield Sample((), {"shape": (3, 5), "seed": 1}, "a seed")
    yield Sample((), {"shape": (4,), "dtype": "float64", "seed": 2}, "float64")


declare(
    "random.uniform",
    (),
    _type,
    _uniform,
    attributes={"low": Attribute("float", 0.0), "high": Attribute("float", 1.0), **_ATTRIBUTES},
    samples=_samples,
    pure=False,  # two of them differ
    summary="numbers evenly spread over [low, high)",
)
declare(
    "random.normal",
    (),
    _type,
    _normal,
    attributes={"mean": Attribute("float", 0.0), "scale": Attribute("float", 1.0), **_ATTRIBUTES},
    samples=_samples,
    pure=False,
    summary="numbers of a normal distribution; scale is its standard deviation",
)
