"""The C functions that kernels may call: the only symbols, besides the thread pool's, that linking resolves."""

from __future__ import annotations

# What LLVM itself calls where an instruction is missing, in both precisions.
_INSTRUCTIONS = ("ceil", "floor", "fma", "fmod", "rint", "roundeven", "trunc")
# LLVM makes one call, of `sincos`, of a sine and a cosine.
_DOUBLE_ONLY = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sincos", "sinh", "tan"),
    *("erf", "expm1", "log1p", "pow", "tanh"),
)
LIBRARY_FUNCTIONS = tuple(
    sorted({*_DOUBLE_ONLY, *(f"{name}{suffix}" for name in _INSTRUCTIONS for suffix in ("", "f"))})
)
OPENMP_FUNCTIONS = ("GOMP_parallel", "omp_get_num_threads", "omp_get_thread_num")
