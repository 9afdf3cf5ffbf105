"""Elementwise operators of one operand: arithmetic, exponentials, trigonometry, rounding, tests, conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from kernelyard.dtypes import FLOATS, SIGNED, convert, from_numpy, is_float
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops import numeric
from kernelyard.ops.declaration import declare, no_flops
from kernelyard.ops.samples import draw_numbers, floats
from kernelyard.ops.type_rules import BOOL, INTEGERS, NUMBERS, elementwise, require_dtype

# name: (reference, operand dtypes, interval that samples are drawn from, what it computes)
UnaryRow = tuple[Callable[..., np.ndarray], Sequence[str], tuple[float, float], str]
SIGNED_NUMBERS = (*FLOATS, *SIGNED)
UNARY: dict[str, UnaryRow] = {
    "abs": (np.abs, NUMBERS, (-3, 3), "|x|"),
    "negative": (np.negative, SIGNED_NUMBERS, (-3, 3), "-x"),
    "sign": (np.sign, NUMBERS, (-3, 3), "-1, 0 or 1"),
    "square": (np.square, NUMBERS, (-3, 3), "x * x"),
    "reciprocal": (lambda x: 1 / x, FLOATS, (0.1, 3), "1 / x"),
    "exp": (np.exp, FLOATS, (-5, 5), "e to the power x"),
    "expm1": (np.expm1, FLOATS, (-2, 2), "exp(x) - 1, exact near 0"),
    "log": (np.log, FLOATS, (0.01, 9), "natural logarithm"),
    "log1p": (np.log1p, FLOATS, (-0.9, 5), "log(1 + x), exact near 0"),
    "sqrt": (np.sqrt, FLOATS, (0, 9), "square root"),
    "rsqrt": (lambda x: 1 / np.sqrt(x), FLOATS, (0.05, 9), "1 / sqrt(x)"),
    "sin": (np.sin, FLOATS, (-7, 7), "sine"),
    "cos": (np.cos, FLOATS, (-7, 7), "cosine"),
    "tan": (np.tan, FLOATS, (-1.4, 1.4), "tangent"),
    "asin": (np.arcsin, FLOATS, (-1, 1), "arc sine"),
    "acos": (np.arccos, FLOATS, (-1, 1), "arc cosine"),
    "atan": (np.arctan, FLOATS, (-9, 9), "arc tangent"),
    "sinh": (np.sinh, FLOATS, (-3, 3), "hyperbolic sine"),
    "cosh": (np.cosh, FLOATS, (-3, 3), "hyperbolic cosine"),
    "tanh": (np.tanh, FLOATS, (-5, 5), "hyperbolic tangent"),
    "asinh": (np.arcsinh, FLOATS, (-9, 9), "inverse hyperbolic sine"),
    "acosh": (np.arccosh, FLOATS, (1, 9), "inverse hyperbolic cosine"),
    "atanh": (np.arctanh, FLOATS, (-0.95, 0.95), "inverse hyperbolic tangent"),
    "erf": (numeric.erf, FLOATS, (-3, 3), "error function"),
    "sigmoid": (numeric.sigmoid, FLOATS, (-8, 8), "1 / (1 + exp(-x))"),
    "floor": (np.floor, FLOATS, (-9, 9), "the largest integer not above x"),
    "ceil": (np.ceil, FLOATS, (-9, 9), "the smallest integer not below x"),
    "round": (np.rint, FLOATS, (-9, 9), "the nearest integer; halves go to the even one"),
    "trunc": (np.trunc, FLOATS, (-9, 9), "the integer part"),
    "bitwise_not": (np.invert, INTEGERS, (-9, 9), "every bit flipped"),
}
TESTS: dict[str, tuple[Callable[..., np.ndarray], str]] = {
    "isnan": (np.isnan, "x is not a number"),
    "isinf": (np.isinf, "x is plus or minus infinity"),
    "isfinite": (np.isfinite, "x is neither NaN nor infinite"),
}
# Where these are defined for every float, NaN, infinities, signed zeros and halves are part of their meaning.
TOTAL = ("abs", "negative", "square", "exp", "tanh", "sigmoid", "floor", "ceil", "round", "trunc", "erf", "atan")
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 88.0, -104.0], np.float32)


def _unary_samples(name: str, allowed: Sequence[str], low: float, high: float) -> Iterator[Sample]:
    if "float32" in allowed:
        draw = partial(floats, low=low, high=high)
        yield Sample((draw(3, 5),), label="matrix")
        yield Sample((draw(1, 3, 1, 17),), label="odd shape")
        yield Sample((draw(),), label="rank 0")
        for dtype in ("float64", "float16", "bfloat16"):
            yield Sample((draw(4, 3, dtype=dtype),), label=dtype)
    if name in TOTAL:
        yield Sample((SPECIAL,), label="special values")
    for dtype in ("int32", "int64", "int8", "uint8"):
        if dtype in allowed:
            yield Sample((draw_numbers(2, 7, dtype=dtype),), label=dtype)


for _name, (_reference, _allowed, _interval, _summary) in UNARY.items():
    declare(
        _name,
        ("x",),
        elementwise(_allowed),
        _reference,
        samples=partial(_unary_samples, _name, _allowed, *_interval),
        widen="float32" in _allowed,
        summary=_summary,
    )


def _test_samples() -> Iterator[Sample]:
    yield Sample((SPECIAL,), label="special values")
    yield Sample((SPECIAL.astype(np.float64).reshape(1, 13),), label="float64")
    yield Sample((np.array(np.nan, np.float32),), label="rank 0")


for _name, (_reference, _summary) in TESTS.items():
    declare(_name, ("x",), elementwise(FLOATS, "bool"), _reference, samples=_test_samples, summary=_summary)


def _logical_not_samples() -> Iterator[Sample]:
    yield Sample((draw_numbers(3, 5, dtype="bool"),), label="matrix")
    yield Sample((np.array(True),), label="rank 0")


declare("logical_not", ("x",), elementwise(BOOL), np.logical_not, samples=_logical_not_samples, summary="not x")


# --- conversion and clipping ------------------------------------------------------------------------------------------
def _astype_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    return TensorType(types[0].shape, attrs["dtype"])


def _astype(x: np.ndarray, *, dtype: str) -> np.ndarray:
    return x != 0 if dtype == "bool" else convert(x, dtype)


def _astype_samples() -> Iterator[Sample]:
    for dtype in ("int32", "int64", "float64", "float16", "bfloat16", "bool"):
        yield Sample((floats(3, 5),), {"dtype": dtype}, f"float32 to {dtype}")
    for dtype in ("int64", "bool", "bfloat16", "float16", "uint8"):
        yield Sample((draw_numbers(2, 7, dtype=dtype),), {"dtype": "float32"}, f"{dtype} to float32")
    yield Sample((draw_numbers(2, 7, dtype="int64"),), {"dtype": "int32"}, "int64 to int32")
    yield Sample((floats(),), {"dtype": "int64"}, "rank 0")


declare(
    "astype",
    ("x",),
    _astype_type,
    _astype,
    attributes={"dtype": Attribute("dtype")},
    samples=_astype_samples,
    flops=no_flops,
    summary="x in another dtype; floats go to integers towards zero, to bool by being nonzero",
)


def _clip_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require_dtype(types[0], NUMBERS)
    return types[0]


def _clip(x: np.ndarray, *, min: float | None, max: float | None) -> np.ndarray:  # noqa: A002 (attribute names)
    # The lower bound first: where min > max, the result is max.
    if min is not None:
        x = np.maximum(x, _clip_to_dtype(min, x.dtype))
    if max is not None:
        x = np.minimum(x, _clip_to_dtype(max, x.dtype))
    return x


def _clip_to_dtype(value: float, dtype: np.dtype) -> np.ndarray:
    if not is_float(from_numpy(dtype)):
        limits = np.iinfo(dtype)
        value = (
            int(np.clip(value, limits.min, limits.max))
            if np.isfinite(value)
            else (limits.max if value > 0 else limits.min)
        )
    return np.asarray(value, dtype)


def _clip_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 5, high=9),), {"min": 0.0, "max": 6.0}, "relu6")
    yield Sample((floats(2, 3, 7),), {"min": -1.0}, "lower bound only")
    yield Sample((floats(2, 3, 7),), {"max": 0.5}, "upper bound only")
    yield Sample((floats(4),), {}, "no bounds")
    yield Sample((floats(),), {"min": -0.5, "max": 0.5}, "rank 0")
    yield Sample((floats(3, 4, dtype="float16"),), {"min": -1.0, "max": 1.0}, "float16")
    yield Sample((SPECIAL,), {"min": -1.0, "max": 1.0}, "special values")
    yield Sample((draw_numbers(2, 7, dtype="int32"),), {"min": -3.0, "max": 3.0}, "int32")


declare(
    "clip",
    ("x",),
    _clip_type,
    _clip,
    attributes={"min": Attribute("float", None), "max": Attribute("float", None)},
    samples=_clip_samples,
    summary="x limited to [min, max]; None is no limit",
)
