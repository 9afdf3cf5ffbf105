"""Samples of claimed operators, and chains of operators built on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import KernelyardError
from kernelyard.ir import Constant, FunctionBuilder, IRModule, Sample, Var
from kernelyard.ops.samples import draw_numbers
from kernelyard.testing.op_cases import OpCase, op_cases

RECAST_FROM = "float32"  # samples of this dtype serve for dtypes that have none
Chain = Sequence[str]


@dataclass(frozen=True)
class Claimed:
    """A sample of a claimed operator in a claimed dtype."""

    case: OpCase
    dtype: str

    def name(self, form: str, chain: Chain = ()) -> str:
        """Return the sample as part of a case's name."""
        ops = ", ".join(chain) or self.case.op.name
        return f"{ops}: {self.case.sample.label} ({self.dtype}, {form})"


def find_claimed_samples(op: str, claimed: Sequence[str]) -> Iterator[Claimed]:
    """Yield the samples of these dtypes; a dtype with no samples of its own gets those of float32 that it can have."""
    cases = op_cases([op])
    for dtype in claimed:
        own = [case for case in cases if _dtype(case) == dtype]
        for case in own or _recast(cases, dtype):
            yield Claimed(case, dtype)


def _dtype(case: OpCase) -> str:
    """Return the dtype that a sample is about: that of its first floating-point operand, else of the first."""
    found = [type_.dtype for type_ in case.types]
    return next((dtype for dtype in found if dtypes.is_float(dtype)), found[0] if found else RECAST_FROM)


def _recast(cases: Sequence[OpCase], dtype: str) -> list[OpCase]:
    of_floats = [case for case in cases if _dtype(case) == RECAST_FROM]
    found = [replace(case, sample=_sample_as(case.sample, dtype)) for case in of_floats]
    return [case for case in found if dtypes.is_float(dtype) or _has_type(case)]


def _sample_as(sample: Sample, dtype: str) -> Sample:
    return replace(sample, inputs=tuple(_as(a, dtype) if a.dtype == np.float32 else a for a in sample.inputs))


def _as(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return floats in another dtype; as integers 16 times as large, so that they differ."""
    to = dtypes.to_numpy(dtype)
    if to.kind not in "iu":
        return array.astype(to)
    limits, middle = np.iinfo(to), 64 if to.kind == "u" else 0
    steps = np.round(16 * np.clip(np.nan_to_num(array), -100, 100)) + middle
    return np.clip(steps, limits.min, limits.max).astype(to)


def _has_type(case: OpCase) -> bool:
    try:
        case.op.infer_type(case.types, case.op.check_attributes(case.sample.attributes))
    except KernelyardError:
        return False
    return True


# --- chains -----------------------------------------------------------------------------------------------------------
class ChainBuilder:
    """Builds chains on samples, and keeps the inputs that they need."""

    def __init__(self, sample: Claimed) -> None:
        self.sample = sample
        self.builder = FunctionBuilder()
        first = sample.case.sample.inputs[0]
        self.feeds: list[np.ndarray] = [first]
        self.x = self.builder.input("x", first.shape, sample.case.types[0].dtype)

    def anchor(self, factor: int = 1) -> Var:
        """Return the sample's operator; operands but the first are constants, multiplied by `factor`."""
        rest = [array * np.asarray(factor, array.dtype) for array in self.sample.case.sample.inputs[1:]]
        attributes = self.sample.case.sample.attributes
        return self.builder.op(self.sample.case.op.name, self.x, *map(Constant, rest), **attributes)

    def extend(self, value: Var, pieces: Chain) -> Var:
        """Apply the chain to the anchor's result."""
        for number, piece in enumerate(pieces):
            op, *operand = piece.split()
            value = self.builder.op(op, value, *(self._operand(value, kind, number) for kind in operand))
        return value

    def _operand(self, value: Var, kind: str, number: int) -> Var | Constant:
        """bias: a vector along the last axis; channels: along axis 1; scalar: a number; residual: a whole tensor."""
        sizes, dtype = _sizes(value), value.tensor_type.dtype
        of_kind = {
            "bias": sizes[-1:],
            "channels": [*sizes[1:2], *([1] * (len(sizes) - 2))],
            "scalar": [],
            "residual": sizes,
        }
        array = draw_numbers(*of_kind[kind], dtype=dtype, seed=number)
        if kind != "residual":
            return Constant(array)
        self.feeds.append(array)
        return self.builder.input(f"r{len(self.feeds)}", sizes, dtype)

    def module(self, *results: Var) -> IRModule:
        """Return the module with these results."""
        return IRModule({"main": self.builder.function(*results)})


def _sizes(value: Var) -> list[int]:
    return [dim for dim in value.tensor_type.shape if isinstance(dim, int)]


# --- chains of stored integers ----------------------------------------------------------------------------------------
STEP = 1 / 64  # of the data; all scales are powers of two, so that sums of products are exact in float32
ZERO_POINTS = {"uint8": 113, "int8": 0}


class QuantizedChainBuilder(ChainBuilder):
    """Builds chains whose tensors are stored as integers of a dtype; weights are int8 around 0."""

    def __init__(self, sample: Claimed, dtype: str) -> None:
        self.sample = sample
        self.builder = FunctionBuilder()
        self.dtype = dtype
        self.feeds: list[np.ndarray] = []
        self.x = self._dequantize_input(sample.case.sample.inputs[0])

    def _dequantize_input(self, array: np.ndarray) -> Var:
        """Dequantize a new input, the integers nearest to an array."""
        limits, zero_point = np.iinfo(self.dtype), ZERO_POINTS[self.dtype]
        self.feeds.append(np.clip(np.round(array / STEP) + zero_point, limits.min, limits.max).astype(self.dtype))
        name = f"x{len(self.feeds)}"
        x = self.builder.input(name, array.shape, self.dtype)
        return self.builder.op(
            "dequantize", x, np.asarray(STEP, np.float32), Constant(np.asarray(zero_point, self.dtype))
        )

    def anchor(self, factor: int = 1) -> Var:
        case = self.sample.case
        weights = [self._weight(array * np.float32(factor)) for array in case.sample.inputs[1:]]
        return self.builder.op(case.op.name, self.x, *weights, **case.sample.attributes)

    def _weight(self, array: np.ndarray) -> Var:
        scale = power_of_two(array, 127)
        whole = Constant(np.round(array / scale).astype(np.int8))
        return self.builder.op("dequantize", whole, scale, Constant(np.asarray(0, np.int8)))

    def _operand(self, value: Var, kind: str, number: int) -> Var | Constant:
        if kind == "residual":
            return self._dequantize_input(draw_numbers(*_sizes(value), seed=number))
        given = super()._operand(value, kind, number)
        assert isinstance(given, Constant)
        return Constant(np.round(given.data * 256) / np.float32(256))  # a multiple of all products' steps

    def quantize(self, value: Var, scale: np.ndarray) -> Var:
        """Quantize a result to integers."""
        zero_point = Constant(np.asarray(ZERO_POINTS[self.dtype], self.dtype))
        return self.builder.op("quantize", value, scale, zero_point, dtype=self.dtype)


def power_of_two(array: np.ndarray, steps: int) -> np.ndarray:
    """Return a power of two, as float32, that so many of reach the largest magnitude."""
    largest = float(np.abs(array).max(initial=0.0))
    return np.asarray(2.0 ** np.ceil(np.log2(largest / steps)) if largest else 1.0, np.float32)
