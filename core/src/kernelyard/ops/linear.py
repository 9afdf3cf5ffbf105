"""Matrix multiplication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.ir.op import Attributes, Sample
from kernelyard.ir.types import TensorType, Type, tensors_of
from kernelyard.ops.declaration import declare, flops_per_input
from kernelyard.ops.samples import draw_numbers, floats
from kernelyard.ops.type_rules import (
    FLOATS,
    NUMBERS,
    broadcast_shapes,
    require,
    require_dtype,
    require_same_dtype,
    unify,
)


def _matmul_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    a, b = types
    dtype = require_same_dtype(types)
    require_dtype(a, NUMBERS)
    require(a.rank >= 1 and b.rank >= 1, "operands must have rank 1 or more", found=f"{a!r} and {b!r}")
    unify(a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0], "the summed axes")
    rows = a.shape[-2:-1] if a.rank > 1 else ()
    columns = b.shape[-1:] if b.rank > 1 else ()
    return TensorType(broadcast_shapes(a.shape[:-2], b.shape[:-2]) + rows + columns, dtype)


def _matmul_flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    return 2 * dims.product(tensors_of(result)[0].shape) * types[0].shape[-1]


def _matmul_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 5), floats(5, 4, seed=1)), label="matrices")
    yield Sample((floats(2, 7, 5), floats(5, 3, seed=1)), label="batch by matrix")
    yield Sample((floats(2, 1, 3, 5), floats(4, 5, 2, seed=1)), label="batches broadcast")
    yield Sample((floats(1, 17), floats(17, 1, seed=1)), label="odd shape")
    yield Sample((floats(5), floats(5, 3, seed=1)), label="vector by matrix")
    yield Sample((floats(2, 3, 5), floats(5, seed=1)), label="batch by vector")
    yield Sample((floats(5), floats(5, seed=1)), label="vectors")
    yield Sample((floats(2, 64), floats(64, 33, seed=1)), label="larger")
    for dtype in ("float64", "float16", "bfloat16", "int32"):
        yield Sample((draw_numbers(3, 6, dtype=dtype), draw_numbers(6, 4, dtype=dtype, seed=1)), label=dtype)


declare(
    "matmul",
    ("a", "b"),
    _matmul_type,
    np.matmul,
    samples=_matmul_samples,
    flops=_matmul_flops,
    widen=True,
    summary="matrix product of the last two axes; leading axes broadcast, rank 1 is a vector",
)


# --- det --------------------------------------------------------------------------------------------------------------
def _det_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x = types[0]
    require_dtype(x, FLOATS)
    require(x.rank >= 2, "the operand has no matrices", found=repr(x), expected="rank 2 or more")
    unify(x.shape[-2], x.shape[-1], "rows and columns")
    return TensorType(x.shape[:-2], x.dtype)


def _det(x: np.ndarray) -> np.ndarray:
    return np.linalg.det(x.astype(np.float64)).astype(x.dtype)


def _det_samples() -> Iterator[Sample]:
    yield Sample((floats(3, 3),), {}, "a matrix")
    yield Sample((floats(2, 4, 2, 2),), {}, "many")


declare(
    "det",
    ("x",),
    _det_type,
    _det,
    samples=_det_samples,
    flops=flops_per_input(1),
    summary="determinants of the matrices in the last two axes",
)
