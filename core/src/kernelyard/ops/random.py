"""Random numbers: every call draws new ones, unless a seed is given.

They are made by Philox from a key, which is the seed or freshly drawn, and the index of the element: the same on every
target, but for how it rounds logarithms and cosines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type
from kernelyard.ops.declaration import declare, no_flops
from kernelyard.ops.philox import MASK, WORDS, philox
from kernelyard.ops.type_rules import FLOATS, require

_ATTRIBUTES = {
    "shape": Attribute("dims"),
    "dtype": Attribute("dtype", "float32"),
    "seed": Attribute("int", None),
}


def key_of_seed(seed: int) -> int:
    """Return the key that a seed stands for: its last 64 bits."""
    return seed & ((1 << 64) - 1)


def is_double(dtype: str) -> bool:
    """Return True where numbers of a dtype are computed in float64; in float32 otherwise."""
    return dtype == "float64"


# --- bits -------------------------------------------------------------------------------------------------------------
def _key_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    return TensorType((), "uint64")


def _key(*, seed: int | None) -> np.ndarray:
    drawn = np.random.default_rng().integers(0, 1 << 64, dtype=np.uint64) if seed is None else key_of_seed(seed)
    return np.asarray(drawn, np.uint64)


def _key_samples() -> Iterator[Sample]:
    yield Sample((), {"seed": 1}, "a seed")
    yield Sample((), {"seed": -1}, "a negative seed")


def _bits_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    (key,) = types
    require(key == TensorType((), "uint64"), "the key must be one integer", found=key, expected="uint64, of no axes")
    word = attrs["word"]
    require(word in range(WORDS), "there is no such word", found=word, expected=f"0 to {WORDS - 1}")
    return TensorType(attrs["shape"], "uint32")


def _bits(key: np.ndarray, *, shape: tuple[int, ...], word: int) -> np.ndarray:
    numbers = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64).reshape(shape)
    zeros = np.zeros(shape, np.uint64)
    counter = numbers & np.uint64(MASK), numbers >> np.uint64(32), zeros, zeros
    keys = key & np.uint64(MASK), key >> np.uint64(32)
    words = philox(counter, keys, np.bitwise_xor, lambda a, by: a >> np.uint64(by))
    return words[word].astype(np.uint32)


def _bits_samples() -> Iterator[Sample]:
    key = np.asarray(0x0123456789ABCDEF, np.uint64)
    yield Sample((key,), {"shape": (3, 5), "word": 0}, "the first word")
    yield Sample((key,), {"shape": (7,), "word": 3}, "the last word")


declare(
    "random.key",
    (),
    _key_type,
    _key,
    attributes={"seed": Attribute("int", None)},
    samples=_key_samples,
    pure=False,  # two of them differ
    flops=no_flops,
    summary="a key for `random.bits`: the seed, or a fresh one",
)
declare(
    "random.bits",
    ("key",),
    _bits_type,
    _bits,
    attributes={"shape": Attribute("dims"), "word": Attribute("int", 0)},
    samples=_bits_samples,
    flops=no_flops,
    summary="32 random bits for each element: a word of Philox4x32-10 of its number and the key",
)


# --- numbers ----------------------------------------------------------------------------------------------------------
def _type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    require(attrs["dtype"] in FLOATS, "random numbers must be floats", found=attrs["dtype"], expected=", ".join(FLOATS))
    return TensorType(attrs["shape"], attrs["dtype"])


def _fractions(key: np.ndarray, shape: tuple[int, ...], dtype: str, number: int) -> np.ndarray:
    """Return numbers in [0, 1) of as many bits as float32 or float64 has, made of one word or two: 0 the first."""
    if not is_double(dtype):
        return (_bits(key, shape=shape, word=number) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    high, low = (_bits(key, shape=shape, word=2 * number + n).astype(np.float64) for n in (0, 1))
    return (np.floor(high * 2.0**-5) * 2.0**26 + np.floor(low * 2.0**-6)) * 2.0**-53


def _uniform(*, shape: tuple[int, ...], low: float, high: float, dtype: str, seed: int | None) -> np.ndarray:
    found = _fractions(_key(seed=seed), shape, dtype, 0)
    return (found * found.dtype.type(high - low) + found.dtype.type(low)).astype(to_numpy(dtype))


def _normal(*, shape: tuple[int, ...], mean: float, scale: float, dtype: str, seed: int | None) -> np.ndarray:
    """Box and Muller, A note on the generation of random normal deviates (1958)."""
    key = _key(seed=seed)
    first, second = (_fractions(key, shape, dtype, number) for number in (0, 1))
    kind = first.dtype.type
    radius = np.sqrt(kind(-2) * np.log(kind(1) - first))
    found = radius * np.cos(kind(2 * np.pi) * second)
    return (found * kind(scale) + kind(mean)).astype(to_numpy(dtype))


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
