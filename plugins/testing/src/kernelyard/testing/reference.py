"""The oracle: any module evaluated by the operators' NumPy references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import kernelyard.ops  # declares the operators
import kernelyard.tir.interpreter  # noqa: F401  # PrimFuncs are evaluated too
from kernelyard.ir import IRModule
from kernelyard.ops.interpreter import run
from kernelyard.testing.assertions import assert_allclose


def evaluate(
    module: IRModule, inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray], function: str = "main"
) -> list[np.ndarray]:
    """Evaluate a module's function by the operators' NumPy references, for inputs in order or by name.

    Raises: as `kernelyard.ops.interpreter.run`.
    """
    return run(module, inputs, function)


def assert_same_meaning(
    before: IRModule, after: IRModule, inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray]
) -> None:
    """Assert that two modules compute the same from the same inputs, within the tolerance of each output's dtype."""
    expected, actual = evaluate(before, inputs), evaluate(after, inputs)
    assert len(actual) == len(expected), f"{len(actual)} outputs, expected {len(expected)}"
    for one, other in zip(actual, expected, strict=True):
        assert_allclose(one, other)
