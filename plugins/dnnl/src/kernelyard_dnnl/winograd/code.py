"""The functions of Winograd convolutions in this process, each compiled at first need."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec

from kernelyard.runtime.linking import Code, compile_text
from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.winograd import products, transforms
from kernelyard_dnnl.winograd.epilogue import Stage

KEPT_RESULT_TRANSFORMS = 256  # beside those that plans hold

# Bits of `dnnl_cpu_isa_t`, and what LLVM calls the instructions that they promise.
_AVX2, _AVX512 = 0x07, 0x27
_AVX2_FEATURES = ("avx", "avx2", "bmi", "bmi2", "fma")
FEATURES: Mapping[int, tuple[str, ...]] = {
    8: _AVX2_FEATURES,
    16: (*_AVX2_FEATURES, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
}


@cache
def vector_lanes() -> int:
    """Floats in a vector, where code can be made for this machine: 16, 8, or 0 where it cannot.

    Needed are vectors that oneDNN would use here, OpenMP by its GNU interface, and llvmlite.
    """
    library = load_library()
    if library.team_functions is None or find_spec("llvmlite") is None:
        return 0
    isa = library.call("dnnl_get_effective_cpu_isa")
    return next((lanes for lanes, bits in ((16, _AVX512), (8, _AVX2)) if isa & bits == bits), 0)


@cache
def run(lanes: int) -> Code:
    """The function `run`, which is the whole convolution."""
    team = load_library().team_functions
    assert team is not None, "without it there are no lanes"
    return _compiled(products.products(lanes), team, ("run",), lanes)


@cache
def transform_data(m: int, lanes: int) -> Code:
    """The function `transform_data`."""
    return _compiled(transforms.data_transform(m, lanes), {}, ("transform_data",), lanes)


@lru_cache(KEPT_RESULT_TRANSFORMS)
def transform_result(m: int, lanes: int, has_bias: bool, stages: tuple[Stage, ...]) -> Code:
    """The function `transform_result` for a bias or none, and these post-ops."""
    return _compiled(transforms.result_transform(m, lanes, has_bias, stages), {}, ("transform_result",), lanes)


@cache
def transform_weights(m: int, lanes: int) -> Callable[..., None]:
    """The function `transform_weights`, to be called from Python with addresses and sizes."""
    code = _compiled(transforms.weight_transform(m, lanes), {}, ("transform_weights",), lanes)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(code.addresses["transform_weights"])

    def call(*arguments: int) -> None:
        function(*arguments)
        assert code  # which must outlive its function

    return call


def _compiled(text: str, imports: Mapping[str, int], names: Sequence[str], lanes: int) -> Code:
    code = compile_text(text, imports, names, FEATURES[lanes])
    assert code is not None, "without llvmlite there are no lanes"
    return code
