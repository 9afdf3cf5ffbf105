"""The functions of Winograd convolutions in this process, each compiled at first need.

What was compiled in an earlier process is found without writing its LLVM assembly, which takes longer than linking it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from kernelyard.runtime.jit.linking import Code, compile_written

if TYPE_CHECKING:
    from kernelyard_llvm.winograd.epilogue import Stage

KEPT_RESULT_TRANSFORMS = 256  # beside those that plans hold

_AVX2 = ("avx", "avx2", "bmi", "bmi2", "fma")
# What LLVM calls the instructions for vectors of so many floats.
FEATURES: Mapping[int, tuple[str, ...]] = {
    8: _AVX2,
    16: (*_AVX2, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}

# The functions of OpenMP's GNU interface that `run` calls, with their addresses.
Team = tuple[tuple[str, int], ...]


@cache
def run(lanes: int, team: Team) -> Code:
    """Return the function `run`, which is the whole convolution."""

    def write() -> str:
        from kernelyard_llvm.winograd.products import products

        return products(lanes)

    return _compile_function("run", write, (), dict(team), lanes)


@cache
def transform_data(m: int, lanes: int, is_volume: bool) -> Code:
    """Return the function `transform_data`, of images or of volumes."""

    def write() -> str:
        from kernelyard_llvm.winograd.transforms import data_transform

        return data_transform(m, lanes, is_volume)

    return _compile_function("transform_data", write, (m, is_volume), {}, lanes)


@lru_cache(KEPT_RESULT_TRANSFORMS)
def transform_result(m: int, lanes: int, has_bias: bool, stages: tuple[Stage, ...]) -> Code:
    """Return the function `transform_result` for a bias or none, and these post-ops."""

    def write() -> str:
        from kernelyard_llvm.winograd.transforms import result_transform

        return result_transform(m, lanes, has_bias, stages)

    return _compile_function("transform_result", write, (m, has_bias, stages), {}, lanes)


@cache
def transform_weights(m: int, lanes: int) -> Callable[..., None]:
    """Return the function `transform_weights`, to be called from Python with addresses and sizes."""

    def write() -> str:
        from kernelyard_llvm.winograd.transforms import weight_transform

        return weight_transform(m, lanes)

    code = _compile_function("transform_weights", write, (m,), {}, lanes)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(code.addresses["transform_weights"])

    def call(*arguments: int) -> None:
        function(*arguments)
        assert code  # which must outlive its function

    return call


def _compile_function(
    name: str, write: Callable[[], str], written_for: Sequence[object], imports: Mapping[str, int], lanes: int
) -> Code:
    """Return a function's code; write: its LLVM assembly, which these sources and values alone decide."""
    sources = _digest_of_sources()
    key = repr((sources, name, lanes, *written_for)) if sources else None
    code = compile_written(write, imports, (name,), FEATURES[lanes], key)
    assert code is not None, "callers have checked for llvmlite"
    return code


@cache
def _digest_of_sources() -> str:
    """Return the digest of all files of this distribution; "" where they are not there as files."""
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    return sha256(b"".join(source.read_bytes() for source in sources)).hexdigest() if sources else ""
