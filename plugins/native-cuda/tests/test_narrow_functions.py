"""Functions of narrow floats: every float16 and bfloat16, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from kernelyard import dtypes
from kernelyard.ir import TensorType
from kernelyard_native_cuda.drivers.emulator import Emulator
from kernelyard_native_cuda.schedule.machine import ANY_MACHINE
from kernelyard_native_cuda.schedule.rules import schedule

from .conftest import generate, run_on
from .test_rules import lower

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "erf": lambda x: np.where(abs(x) < 0.5, np.vectorize(math.erf)(x), np.sign(x) * (1 - _erfc(abs(x)))),
    "nn.silu": lambda x: x * sigmoid(x),
    "nn.gelu": lambda x: x * 0.5 * _erfc(-x / math.sqrt(2)),
    "nn.gelu_tanh": gelu_tanh,
}


# 0.5 x (1 + erf) in float32 loses of 1 + erf what is below its last place; others flush what float32 has no normal for.
LOST = {"nn.gelu": 2.0**-24, "nn.gelu_tanh": 2.0**-24}
FLUSHED = 2.0**-126


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_number_is_within_a_unit_in_the_last_place(emulator: Emulator, name, dtype):
    """On a GPU, powers of two and reciprocals are wrong by up to 2^-22 as well: a hundredth of a unit."""
    function = lower(name, TensorType((1 << 16,), dtype))
    assert "narrow_" in schedule(function, "f", ANY_MACHINE).kernels[0].text
    x = np.arange(1 << 16, dtype=np.uint16).view(dtypes.to_numpy(dtype))
    (found,) = run_on(emulator, generate({"f": function}), "f", [x])
    limits = ml_dtypes.finfo(x.dtype)
    with np.errstate(all="ignore"):
        exact, given = x.astype(np.float64), found.astype(np.float64)
        wanted = FUNCTIONS[name](exact)
        unit = np.exp2(np.floor(np.log2(np.maximum(abs(wanted), float(limits.smallest_normal))))) * float(limits.eps)
        allowed = 0.9 * unit + np.maximum(abs(exact), 1) * LOST.get(name, FLUSHED)
        is_right = abs(given - wanted) <= allowed
    is_number, fits = ~np.isnan(wanted), abs(wanted) <= float(limits.max)
    assert is_right[is_number & fits].all()
    np.testing.assert_array_equal(np.isnan(given), ~is_number)
    assert (abs(given[is_number & ~fits]) >= float(limits.max)).all()
