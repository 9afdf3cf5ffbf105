"""Emulation of the kernels with NumPy, from the kernels' own arguments and nothing else.

Each function gets the kernel's parameters, the grid, and the arguments of its entry. It computes what the grid covers,
from the addresses, sizes and strides that are given, with the kernel's own precision; a wrong argument gives a wrong
number. What a GPU would answer with an error is one here: addresses and strides that are not aligned as the kernel
reads them, and elements outside of the tensor that an address belongs to.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import ExecutionError
from kernelyard.runtime.api import array_at
from kernelyard_cuda.driver_api import Argument, Launch
from kernelyard_cutlass.arithmetic import F32, Array, apply_epilogue, multiply, store
from kernelyard_cutlass.epilogue import NONE
from kernelyard_cutlass.kernels import (
    AttentionKernel,
    Conv2dKernel,
    DecodeRowsKernel,
    DequantizeKernel,
    GemmKernel,
    Kernel,
    NormKernel,
    PadKernel,
    TransposeKernel,
)
from kernelyard_cutlass.launches import RUN, SIGNATURES, PlannedLaunch


class Arguments:
    """The arguments of an entry by name, and the memory behind its pointers."""

    def __init__(self, launch: PlannedLaunch) -> None:
        self.kernel: Any = launch.kernel
        self.blocks = launch.blocks
        self._given: dict[str, Argument] = dict(zip(SIGNATURES[launch.kernel.template], launch.arguments, strict=True))

    def __getitem__(self, name: str) -> int:
        return self._given[name].value

    def numbers(self, *names: str) -> tuple[int, ...]:
        """Return several integer arguments."""
        return tuple(self[name] for name in names)

    def float(self, name: str) -> float:
        """Return a floating-point number."""
        return struct.unpack("<d", struct.pack("<q", self[name]))[0]

    def require_aligned(self, elements: int, dtype: str, *names: str, strides: Sequence[str] = ()) -> None:
        """Require that pointers, and strides, are multiples of what is read at once.

        Raises: ExecutionError, as a GPU would stop.
        """
        nbytes = elements * dtypes.itemsize(dtype)
        for name, unit in (*((name, nbytes) for name in names), *((name, elements) for name in strides)):
            if self[name] % unit:
                raise ExecutionError(
                    "a kernel would read misaligned memory",
                    where=f"{self.kernel.template}, argument {name}",
                    found=self[name],
                    expected=f"a multiple of {unit}",
                )

    def view(self, name: str, dtype: str, shape: Sequence[int], strides: Sequence[int] | None = None) -> Array:
        """Return the elements behind a pointer; strides in elements, dense rows where they are left out.

        Raises: ExecutionError for elements outside of the tensor.
        """
        if strides is None:
            strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        if 0 in shape:
            return np.empty(shape, dtypes.to_numpy(dtype))
        address, nbytes = self._given[name]
        held = nbytes // dtypes.itemsize(dtype)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if not address or last >= held:
            raise ExecutionError(
                "a kernel would read out of bounds",
                where=f"{self.kernel.template}, argument {name}",
                found=f"element {last}",
                expected=f"at most {held} elements",
            )
        flat = array_at(address, (held,), dtype)
        steps = [stride * flat.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat, shape, steps)


class EmulatedLaunch(Launch):
    """A launch that NumPy runs."""

    def __init__(self, planned: PlannedLaunch) -> None:
        self._planned = planned

    def __call__(self) -> None:
        kernel = self._planned.kernel
        EMULATIONS[kernel.template](kernel, Arguments(self._planned))

    def move(self, place: int, address: int) -> None:
        """See `Launch.move`."""
        arguments = list(self._planned.arguments)
        arguments[place] = arguments[place]._replace(value=address)
        self._planned = replace(self._planned, arguments=tuple(arguments))


# --- matmuls ----------------------------------------------------------------------------------------------------------
def _epilogue(given: Arguments, total: Array, source: Callable[[], Array], vector: Callable[[], Array]) -> Array:
    """Apply a matmul's epilogue to the accumulators, in their precision."""
    kernel: GemmKernel | Conv2dKernel = given.kernel
    alpha, beta = total.dtype.type(given.float("alpha")), total.dtype.type(given.float("beta"))
    scaled = alpha * total
    if kernel.epilogue.combine == NONE:
        if beta:
            scaled = scaled + beta * source().astype(total.dtype)
        return apply_epilogue(scaled, kernel.epilogue, None)
    if given["vector"]:
        scaled = scaled + vector().astype(total.dtype)
    return apply_epilogue(scaled, kernel.epilogue, beta * source().astype(total.dtype))


def _log_of_tile(columns: int) -> int:
    return next(log for log, least in ((3, 6), (2, 3), (1, 2), (0, 0)) if columns >= least)


def _find_covered(given: Arguments, m: int, n: int) -> tuple[int, int]:
    """Return the rows and columns of the result that the grid's tiles reach."""
    tile = given.kernel.tile
    log = _log_of_tile(math.ceil(n / tile.n))
    return min(m, (given.blocks[0] >> log) * tile.m), min(n, (given.blocks[1] << log) * tile.n)


# --- kernels ----------------------------------------------------------------------------------------------------------
def _gemm(kernel: GemmKernel, given: Arguments) -> None:
    m, n, k, batch = given.numbers("m", "n", "k", "batch")
    output = kernel.output
    _check_product(kernel, given, ("a", "b", "d"), k, k if kernel.column_major else n, n)
    given.require_aligned(kernel.alignment_a, kernel.dtype, strides=("lda", "stride_a"))
    given.require_aligned(kernel.alignment_b, kernel.dtype, strides=("ldb", "stride_b"))
    given.require_aligned(kernel.alignment_c, output, strides=("ldd", "ld_source", "stride_d", "stride_source"))
    ldb = (1, given["ldb"]) if kernel.column_major else (given["ldb"], 1)
    a = given.view("a", kernel.dtype, (batch, m, k), (given["stride_a"], given["lda"], 1))
    b = given.view("b", kernel.dtype, (batch, k, n), (given["stride_b"], *ldb))
    d = given.view("d", output, (batch, m, n), (given["stride_d"], given["ldd"], 1))

    def source() -> Array:
        return given.view("source", output, (batch, m, n), (given["stride_source"], given["ld_source"], 1))

    with np.errstate(all="ignore"):
        total = multiply(a, b, kernel.math)
        result = _epilogue(given, total, source, lambda: given.view("vector", output, (n,)))
    rows, columns = _find_covered(given, m, n)
    store(d[: given.blocks[2], :rows, :columns], result[: given.blocks[2], :rows, :columns])


def _check_product(
    kernel: GemmKernel | Conv2dKernel, given: Arguments, names: tuple[str, str, str], a: int, b: int, c: int
) -> None:
    """Check pointers and row strides as CUTLASS's `can_implement` does."""
    output = kernel.output
    given.require_aligned(kernel.alignment_a, kernel.dtype, names[0])
    given.require_aligned(kernel.alignment_b, kernel.dtype, names[1])
    given.require_aligned(kernel.alignment_c, output, names[2], "source", "vector")
    for size, alignment in ((a, kernel.alignment_a), (b, kernel.alignment_b), (c, kernel.alignment_c)):
        if size % alignment:
            raise ExecutionError(
                "a kernel would read misaligned memory",
                where=kernel.template,
                found=f"rows of {size} elements",
                expected=f"a multiple of {alignment}",
            )


def _conv2d(kernel: Conv2dKernel, given: Arguments) -> None:
    n, h, w, c, k, r, s, p, q = given.numbers("n", "h", "w", "c", "k", "r", "s", "p", "q")
    output = kernel.output
    _check_product(kernel, given, ("x", "weight", "y"), c, c, k)
    given.require_aligned(kernel.alignment_c, output, strides=("source_w", "source_h", "source_n"))
    x = given.view("x", kernel.dtype, (n, h, w, c))
    weight = given.view("weight", kernel.dtype, (k, r, s, c))
    y = given.view("y", output, (n, p, q, k))
    rows = np.zeros((n, p, q, r, s, c), x.dtype)
    for i, j in np.ndindex(r, s):
        _gather(rows[:, :, :, i, j], x, given, i, j)
    with np.errstate(all="ignore"):
        total = multiply(rows.reshape(n * p * q, -1), weight.reshape(k, -1).T, kernel.math).reshape(n, p, q, k)
        strides = (*given.numbers("source_n", "source_h", "source_w"), 1)
        result = _epilogue(
            given,
            total,
            lambda: given.view("source", output, (n, p, q, k), strides),
            lambda: given.view("vector", output, (k,)),
        )
    down, across = _find_covered(given, n * p * q, k)
    store(y.reshape(-1, k)[:down, :across], result.reshape(-1, k)[:down, :across])


def _gather(target: Array, x: Array, given: Arguments, i: int, j: int) -> None:
    """Gather the image positions under one tap of the filter; zeros where it meets padding."""
    found = []
    for axis, (tap, name) in enumerate(((i, "h"), (j, "w"))):
        at = np.arange(target.shape[1 + axis]) * given[f"stride_{name}"] - given[f"pad_{name}"]
        at = at + tap * given[f"dilation_{name}"]
        found.append((np.flatnonzero((at >= 0) & (at < x.shape[1 + axis])), at))
    (rows, at_rows), (columns, at_columns) = found
    target[:, rows[:, None], columns] = x[:, at_rows[rows][:, None], at_columns[columns]]


def _attention(kernel: AttentionKernel, given: Arguments) -> None:
    rows, columns, heads, shared = given.numbers("rows", "columns", "heads", "shared_heads")
    size, value_size = given.numbers("size", "value_size")
    given.require_aligned(
        kernel.alignment, kernel.dtype, "queries", "keys", "values", strides=("row_q", "row_k", "row_v")
    )
    given.require_aligned(kernel.alignment, kernel.dtype, strides=("size", "value_size"))
    given.require_aligned(kernel.bias_alignment, kernel.dtype, "bias", strides=("bias_row", "bias_head", "bias_batch"))
    _require(value_size <= kernel.most_size, kernel, "value_size", value_size, f"at most {kernel.most_size}")
    _require(not kernel.needs_accumulators or given["accumulators"] != 0, kernel, "accumulators", 0, "memory")
    _require(not given["bias"] or kernel.has_bias, kernel, "bias", given["bias"], "a kernel with a bias")
    for batch, head in np.ndindex(given.blocks[2], given.blocks[1]):
        of_keys = head // (heads // shared)
        if given["starts_q"]:
            first_q, last_q = given.view("starts_q", "int32", (given["batch"] + 1,))[batch : batch + 2]
            first_k, last_k = given.view("starts_k", "int32", (given["batch"] + 1,))[batch : batch + 2]
        else:
            first_q, last_q, first_k, last_k = batch * rows, (batch + 1) * rows, batch * columns, (batch + 1) * columns
        q = _rows(given, "queries", kernel.dtype, int(last_q), head * size, size, "row_q")[int(first_q) :]
        k = _rows(given, "keys", kernel.dtype, int(last_k), of_keys * size, size, "row_k")[int(first_k) :]
        v = _rows(given, "values", kernel.dtype, int(last_k), of_keys * value_size, value_size, "row_v")[int(first_k) :]
        result = given.view("result", kernel.dtype, (int(last_q), heads, value_size))[int(first_q) :, head]
        covered = min(len(q), given.blocks[0] * kernel.queries)
        scores = _scores(kernel, given, q, k, batch, head)[:covered]
        store(result[:covered], _weight_values(scores, v, kernel.dtype))


def _require(holds: bool, kernel: Kernel, name: str, found: object, expected: str) -> None:
    if not holds:
        raise ExecutionError(
            "a kernel got unsupported arguments",
            where=f"{kernel.template}, argument {name}",
            found=found,
            expected=expected,
        )


def _rows(given: Arguments, name: str, dtype: str, rows: int, start: int, size: int, step: str) -> Array:
    return given.view(name, dtype, (rows, start + size), (given[step], 1))[:, start:]


def _scores(kernel: AttentionKernel, given: Arguments, q: Array, k: Array, batch: int, head: int) -> Array:
    scores = F32(given.float("scale")) * multiply(q, k.T, "3xtf32" if kernel.dtype == "float32" else kernel.dtype)
    if given["bias"]:
        start = batch * given["bias_batch"] + head * given["bias_head"]
        shape = (len(q), start + len(k))
        scores = scores + given.view("bias", kernel.dtype, shape, (given["bias_row"], 1))[:, start:].astype(F32)
    if given["mask"]:
        diagonal = len(k) - len(q) if given["mask"] == 2 else 0
        scores = np.where(np.tri(len(q), len(k), diagonal, bool), scores, F32(-np.inf))
    return scores


def _weight_values(scores: Array, values: Array, dtype: str) -> Array:
    """Return the values weighted by the softmax of the scores: powers are rounded to the operands' dtype, and divided
    by their sum at the end.
    """
    if not scores.size:
        return np.zeros((len(scores), values.shape[1]), F32)
    with np.errstate(all="ignore"):
        powers = np.exp(scores - scores.max(1, keepdims=True))
        total = multiply(powers.astype(values.dtype), values, "3xtf32" if dtype == "float32" else dtype)
        return total / powers.sum(1, keepdims=True)


def _norm(kernel: NormKernel, given: Arguments) -> None:
    columns, rows = given["columns"], given.blocks[0]
    names = ("x", "gamma", "y", *(() if kernel.is_rms else ("beta",)))
    given.require_aligned(kernel.alignment, kernel.dtype, *names, strides=("columns",))
    x = given.view("x", kernel.dtype, (rows, columns)).astype(F32)
    centred = x if kernel.is_rms else x - x.mean(1, keepdims=True, dtype=F32)
    spread = np.sqrt((centred * centred).mean(1, keepdims=True, dtype=F32) + F32(given.float("epsilon")))
    result = centred * (1 / spread) * given.view("gamma", kernel.dtype, (columns,)).astype(F32)
    if not kernel.is_rms:
        result = result + given.view("beta", kernel.dtype, (columns,)).astype(F32)
    store(given.view("y", kernel.dtype, (rows, columns)), result)


def _weights(kernel: DequantizeKernel, given: Arguments) -> tuple[Array, Array]:
    """Return the stored integers (N, K), and their scales (N, K)."""
    n, k, group = given.numbers("n", "k", "group")
    _require(k % RUN == 0 and group % RUN == 0, kernel, "group", (k, group), f"multiples of {RUN}")
    given.require_aligned(RUN * kernel.bits // 8, "int8", "weights")
    stored = given.view("weights", "int8", (n, k * kernel.bits // 8))
    if kernel.bits == 4:  # the lower half of a byte comes first
        stored = np.stack([np.left_shift(stored, 4) >> 4, stored >> 4], axis=2).reshape(n, k)
    scales = given.view("scales", kernel.dtype, (k // group, n)).astype(F32)
    return stored.astype(F32), scales.repeat(group, 0).T


def _dequantize(kernel: DequantizeKernel, given: Arguments) -> None:
    given.require_aligned(8, kernel.dtype, "dequantized")
    stored, scales = _weights(kernel, given)
    dequantized = given.view("dequantized", kernel.dtype, (given["n"] * given["k"],))
    reached = given.blocks[0] * kernel.threads * RUN
    store(dequantized[:reached], (stored * scales).reshape(-1)[:reached])


def _decode_rows(kernel: DecodeRowsKernel, given: Arguments) -> None:
    m, n, k = given.numbers("m", "n", "k")
    given.require_aligned(8, kernel.dtype, "a")
    stored, scales = _weights(kernel, given)
    a = given.view("a", kernel.dtype, (m, k)).astype(F32)
    bias = given.view("bias", kernel.output, (n,)).astype(F32) if given["bias"] else F32(0)
    residual = None
    if kernel.epilogue.combine != NONE:
        residual = given.view("residual", kernel.output, (m, n), (given["ld_residual"], 1)).astype(F32)
    with np.errstate(all="ignore"):
        result = apply_epilogue(a @ (stored * scales).T + bias, kernel.epilogue, residual)
    rows, columns = min(m, given.blocks[1] * kernel.rows), min(n, given.blocks[0] * (kernel.threads // 32))
    store(given.view("d", kernel.output, (m, n))[:rows, :columns], result[:rows, :columns])


def _transpose(kernel: TransposeKernel, given: Arguments) -> None:
    rows, columns = given.numbers("rows", "columns")
    across, down, count = given.blocks
    x = given.view("x", kernel.dtype, (count, rows, columns))[:, : down * 32, : across * 32]
    y = given.view("y", kernel.dtype, (count, columns, rows))
    y[:, : across * 32, : down * 32] = x.swapaxes(1, 2)


def _pad(kernel: PadKernel, given: Arguments) -> None:
    rows, columns, wide = given.numbers("rows", "columns", "wide")
    result = np.zeros((rows, wide), dtypes.to_numpy(kernel.dtype))
    result[:, :columns] = given.view("x", kernel.dtype, (rows, columns))
    reached = given.blocks[0] * 256
    given.view("y", kernel.dtype, (rows * wide,))[:reached] = result.reshape(-1)[:reached]


EMULATIONS: Mapping[str, Callable[[Any, Arguments], None]] = {
    "gemm": _gemm,
    "conv2d": _conv2d,
    "attention": _attention,
    "norm": _norm,
    "decode_rows": _decode_rows,
    "dequantize": _dequantize,
    "transpose": _transpose,
    "pad": _pad,
}
