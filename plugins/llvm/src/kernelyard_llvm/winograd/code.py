"""The functions of Winograd convolutions in this process, each compiled at first need."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache

from kernelyard.runtime.jit.linking import Code, compile_text
from kernelyard_llvm.winograd import products, transforms
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
    return _compiled(products.products(lanes), dict(team), ("run",), lanes)


@cache
def transform_data(m: int, lanes: int) -> Code:
    """Return the function `transform_data`."""
    return _compiled(transforms.data_transform(m, lanes), {}, ("transform_data",), lanes)


@lru_cache(KEPT_RESULT_TRANSFORMS)
def transform_result(m: int, lanes: int, has_bias: bool, stages: tuple[Stage, ...]) -> Code:
    """Return the function `transform_result` for a bias or none, and these post-ops."""
    return _compiled(transforms.result_transform(m, lanes, has_bias, stages), {}, ("transform_result",), lanes)


@cache
def transform_weights(m: int, lanes: int) -> Callable[..., None]:
    """Return the function `transform_weights`, to be called from Python with addresses and sizes."""
    code = _compiled(transforms.weight_transform(m, lanes), {}, ("transform_weights",), lanes)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(code.addresses["transform_weights"])

    def call(*arguments: int) -> None:
        function(*arguments)
        assert code  # which must outlive its function

    return call


def _compiled(text: str, imports: Mapping[str, int], names: Sequence[str], lanes: int) -> Code:
    code = compile_text(text, imports, names, FEATURES[lanes])
    assert code is not None, "callers have checked for llvmlite"
    return code
