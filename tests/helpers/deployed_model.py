"""A model that tests deploy: tanh(x @ w) for n rows."""

from __future__ import annotations

import numpy as np

from kernelyard_deploy import Facts

WEIGHT = np.random.default_rng(7).standard_normal((4, 3)).astype(np.float32)
FACTS = Facts(
    name="scorer",
    version="1.2",
    license="Apache-2.0",
    author="A. Author",
    source="https://example.com/scorer",
    batch="n",
    sizes={"n": (1, 64)},
    warm_up=({"n": 1}, {"n": 8}),
)


def expected(x: np.ndarray) -> np.ndarray:
    """Compute the results of the model in NumPy."""
    return np.tanh(x.astype(np.float32) @ WEIGHT)
