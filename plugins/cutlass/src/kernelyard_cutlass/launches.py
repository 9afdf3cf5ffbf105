"""From the tensors of a call to launches: which kernel, how many blocks, and the arguments of its entry.

Everything that a kernel is told is decided here, for the GPU and the emulator alike.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelyard import dtypes
from kernelyard.errors import ExecutionError
from kernelyard.runtime.api import BoundTensor, Fields, align
from kernelyard_cuda.driver_api import Argument
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
from kernelyard_cutlass.tiles import Problem

# The parameters of each template's entry, in order.
_PARAMETERS = {
    "gemm": """
        m n k batch a b source vector d lda ldb ld_source ldd stride_a stride_b stride_source stride_d alpha beta
    """,
    "conv2d": """
        n h w c k r s p q pad_h pad_w stride_h stride_w dilation_h dilation_w x weight source vector y
        source_w source_h source_n alpha beta
    """,
    "attention": """
        batch rows columns heads shared_heads size value_size queries keys values bias starts_q starts_k result
        accumulators bias_batch bias_head bias_row row_q row_k row_v mask scale
    """,
    "norm": "columns x gamma beta y epsilon",
    "decode_rows": "m n k group a weights scales bias residual d ld_residual",
    "dequantize": "n k group weights scales dequantized",
    "transpose": "rows columns x y",
    "pad": "rows columns wide x y",
}
SIGNATURES = {template: tuple(names.split()) for template, names in _PARAMETERS.items()}
RUN = 16  # elements of a weight that a thread dequantizes at a time
MOST_BLOCKS = ((1 << 31) - 1, 65535, 65535)
MOST_WINDOW = 1 << 16
MASKS = {"none": 0, "top_left": 1, "bottom_right": 2}
FEW_ROWS = 16  # up to here weights are dequantized as they are multiplied, and beyond into memory first


@dataclass(frozen=True)
class PlannedLaunch:
    """A kernel with its arguments. lanes: the threads of a block along x, where they are counted along y as well."""

    kernel: Kernel
    blocks: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    lanes: int = 0


@dataclass(frozen=True)
class Choice:
    """Kernels that do the same, of which one is to be taken, by what it is for."""

    problem: Problem
    kernels: Sequence[GemmKernel | Conv2dKernel]
    launches: Callable[[Any], list[PlannedLaunch]]


Step = PlannedLaunch | Choice


@dataclass(frozen=True)
class Call:
    """One composite at run time. tensors: by role. kernels: those compiled for it, by what they are for.
    workspace(nbytes): an address, asked for once.
    """

    attrs: Fields
    tensors: Mapping[str, BoundTensor]
    output: BoundTensor
    kernels: Mapping[str, Sequence[Any]]
    workspace: Callable[[int], int]

    def __getitem__(self, role: str) -> BoundTensor:
        return self.tensors[role]


def arguments(template: str, **values: float | BoundTensor | None) -> tuple[Argument, ...]:
    """Return the arguments of an entry, by name, each of eight bytes: numbers, tensors, and None for a null pointer.

    Example:
        >>> arguments("transpose", rows=2, columns=3, x=None, y=BoundTensor(64, (3, 2), "float16"))[-1]
        Argument(value=64, nbytes=12)
    """
    assert set(values) == set(SIGNATURES[template]), sorted(set(values) ^ set(SIGNATURES[template]))
    return tuple(_argument(values[name]) for name in SIGNATURES[template])


def _argument(value: float | BoundTensor | None) -> Argument:
    if isinstance(value, BoundTensor):
        return Argument(value.address, value.nbytes)
    if isinstance(value, float):
        return Argument(struct.unpack("<q", struct.pack("<d", value))[0])
    return Argument(value or 0)


def blocks(x: int, y: int = 1, z: int = 1) -> tuple[int, int, int]:
    """Return a grid. Raises: ExecutionError for more blocks than a GPU takes."""
    for size, most in zip((x, y, z), MOST_BLOCKS, strict=True):
        if size > most:
            raise ExecutionError(
                "the launch grid of a kernel is too large", found=(x, y, z), expected=f"at most {MOST_BLOCKS}"
            )
    return x, y, z


def swizzle_grid(kernel: GemmKernel | Conv2dKernel, m: int, n: int, batch: int) -> tuple[int, int, int]:
    """Return the grid of tiles as CUTLASS walks them: blocks that run together share columns of tiles, up to eight."""
    down, across = math.ceil(m / kernel.tile.m), math.ceil(n / kernel.tile.n)
    log = 3 if across >= 6 else 2 if across >= 3 else 1 if across >= 2 else 0
    return blocks(down << log, math.ceil(across / (1 << log)), batch)


# --- matmuls ----------------------------------------------------------------------------------------------------------
def gemm(call: Call) -> list[Step]:
    """Return a matmul, or many, with what follows on it."""
    return [product(call, call["lhs"], call["rhs"], call.attrs.any("column_major") is True)]


def product(call: Call, lhs: BoundTensor, rhs: BoundTensor, column_major: bool) -> Choice:
    """Return the launches of a matmul whose right side is stored (..., K, N), or column by column as (..., N, K)."""
    k, n = (rhs.shape[-1], rhs.shape[-2]) if column_major else rhs.shape[-2:]
    m, batch, stride_a, stride_b = _batches(lhs.shape, rhs.shape, k, n)
    itemsize = dtypes.itemsize(lhs.dtype)

    def launches(kernel: GemmKernel) -> list[PlannedLaunch]:
        found = []
        for start in range(0, batch, MOST_BLOCKS[2]):
            count = min(MOST_BLOCKS[2], batch - start)
            given = _epilogue(call, kernel, m, n, start)
            values = {
                "m": m, "n": n, "k": k, "batch": count,
                "a": _skip_elements(lhs, start * stride_a), "b": _skip_elements(rhs, start * stride_b),
                "d": _skip_elements(call.output, start * m * n),
                "lda": k, "ldb": k if column_major else n, "ldd": n,
                "stride_a": stride_a, "stride_b": stride_b, "stride_d": m * n, **given,
            }  # fmt: skip
            found.append(PlannedLaunch(kernel, swizzle_grid(kernel, m, n, count), arguments("gemm", **values)))
        return found

    return Choice(Problem(m, n, k, batch, itemsize), call.kernels["gemm"], launches)


def _batches(left: Sequence[int], right: Sequence[int], k: int, n: int) -> tuple[int, int, int, int]:
    """Return the rows, the batch count, and each side's batch stride: 0 if all batches read the same."""
    rows, of_left, of_right = left[-2], math.prod(left[:-2]), math.prod(right[:-2])
    if of_right == 1:
        return of_left * rows, 1, 0, 0
    return rows, of_right, 0 if of_left == 1 else rows * k, k * n


def _epilogue(call: Call, kernel: GemmKernel | Conv2dKernel, m: int, n: int, start: int) -> dict[str, Any]:
    """Return the epilogue's arguments: a source matrix, possibly with one row, and a vector."""
    has_residual = kernel.epilogue.combine != "none"
    source = call.tensors.get("residual" if has_residual else "addend" if "addend" in call.tensors else "bias")
    is_row = source is None or math.prod(source.shape) == n
    return {
        "source": source if source is None or is_row else _skip_elements(source, start * m * n),
        "vector": call.tensors.get("bias") if has_residual else None,
        "ld_source": 0 if is_row else n,
        "stride_source": 0 if is_row else m * n,
        "alpha": 1.0,
        "beta": 0.0 if source is None else 1.0,
    }


def _skip_elements(tensor: BoundTensor, elements: int) -> BoundTensor:
    """Return the tensor from some element on, as memory alone."""
    itemsize = dtypes.itemsize(tensor.dtype)
    return BoundTensor(tensor.address + elements * itemsize, (math.prod(tensor.shape) - elements,), tensor.dtype)


# --- weight-only quantization -----------------------------------------------------------------------------------------
def decode_matmul(call: Call) -> list[Step]:
    """Return a matmul with weights of 8 or 4 bits: dequantized in registers for few rows, else into memory."""
    lhs, scales = call["lhs"], call["scales"]
    k, n = lhs.shape[-1], scales.shape[-1]
    m, group = math.prod(lhs.shape[:-1]), k // scales.shape[0]
    few: DecodeRowsKernel = call.kernels["rows"][0]
    weights = call["weights"]
    if m <= FEW_ROWS:
        residual, columns = call.tensors.get("residual"), few.threads // 32
        is_row = residual is None or math.prod(residual.shape) == n
        given = arguments(
            "decode_rows", m=m, n=n, k=k, group=group, a=lhs, weights=weights, scales=scales,
            bias=call.tensors.get("bias"), residual=residual, d=call.output, ld_residual=0 if is_row else n,
        )  # fmt: skip
        return [PlannedLaunch(few, blocks(math.ceil(n / columns), math.ceil(m / few.rows)), given)]
    decoder: DequantizeKernel = call.kernels["dequantize"][0]
    nbytes = n * k * dtypes.itemsize(lhs.dtype)
    dequantized = BoundTensor(call.workspace(nbytes), (n, k), lhs.dtype)
    given = arguments("dequantize", n=n, k=k, group=group, weights=weights, scales=scales, dequantized=dequantized)
    first = PlannedLaunch(decoder, blocks(math.ceil(n * k / (decoder.threads * RUN))), given)
    return [first, product(call, lhs, dequantized, column_major=True)]


# --- convolutions -----------------------------------------------------------------------------------------------------
def conv2d(call: Call) -> list[Step]:
    """Return a convolution of images with channels last.

    Weights that are not (K, R, S, C) yet are brought there first.
    """
    x, weight, y = call["x"], call["weight"], call.output
    (n, h, w, c), (_, p, q, k) = x.shape, y.shape
    before: list[Step] = []
    if call.attrs.any("weight_channels_first"):
        r, s = weight.shape[2:]
        moved = BoundTensor(call.workspace(weight.nbytes), (k, r, s, c), weight.dtype)
        before.append(transpose(call.kernels["transpose"][0], k, c, r * s, weight, moved))
        weight = moved
    r, s = weight.shape[1:3]

    padding, strides, dilation = (call.attrs.indices(name, MOST_WINDOW) for name in ("padding", "strides", "dilation"))

    def launches(kernel: Conv2dKernel) -> list[PlannedLaunch]:
        epilogue = _epilogue(call, kernel, n * p * q, k, 0)
        step = epilogue["ld_source"]
        given = arguments(
            "conv2d", n=n, h=h, w=w, c=c, k=k, r=r, s=s, p=p, q=q,
            pad_h=padding[0], pad_w=padding[1],
            stride_h=strides[0], stride_w=strides[1],
            dilation_h=dilation[0], dilation_w=dilation[1],
            x=x, weight=weight, source=epilogue["source"], vector=epilogue["vector"], y=y,
            source_w=step, source_h=step * q, source_n=step * q * p,
            alpha=epilogue["alpha"], beta=epilogue["beta"],
        )  # fmt: skip
        return [PlannedLaunch(kernel, swizzle_grid(kernel, n * p * q, k, 1), given)]

    problem = Problem(n * p * q, k, c * r * s, 1, dtypes.itemsize(x.dtype))
    return [*before, Choice(problem, call.kernels["conv2d"], launches)]


def transpose(
    kernel: TransposeKernel, count: int, rows: int, columns: int, x: BoundTensor, y: BoundTensor
) -> PlannedLaunch:
    """Transpose `count` matrices."""
    grid = blocks(math.ceil(columns / 32), math.ceil(rows / 32), count)
    return PlannedLaunch(kernel, grid, arguments("transpose", rows=rows, columns=columns, x=x, y=y))


# --- attention --------------------------------------------------------------------------------------------------------
def attention(call: Call) -> list[Step]:
    """Launch attention of tensors (batch, sequence, heads, size)."""
    tensors = [call[role] for role in ("query", "key", "value")]
    return _attention(call, tensors, [t.shape for t in tensors], [t.shape[2] * t.shape[3] for t in tensors])


def stacked_attention(call: Call) -> list[Step]:
    """Launch attention of the thirds of a tensor (batch, sequence, 3 * heads * size), read where they are."""
    stacked, heads = call["stacked"], call.attrs.integer("heads", 1)
    batch, rows, wide = stacked.shape
    thirds = [_skip_elements(stacked, third * wide // 3) for third in range(3)]
    return _attention(call, thirds, [(batch, rows, heads, wide // 3 // heads)] * 3, [wide] * 3)


def _attention(
    call: Call, tensors: Sequence[BoundTensor], shapes: Sequence[Sequence[int]], row_sizes: Sequence[int]
) -> list[Step]:
    """row_sizes: elements from one row to the next of queries, keys and values."""
    kernel: AttentionKernel = call.kernels["attention"][0]
    (batch, rows, heads, size), (_, columns, shared, _), (*_, value_size) = shapes
    result, (queries, keys, values) = call.output, tensors
    starts = [call.tensors.get(name) for name in ("seqstart_q", "seqstart_k")]
    if starts[0] is not None:  # sequences lie one after the other in a batch of one
        batch = math.prod(starts[0].shape) - 1
    if batch < 1:
        return []
    accumulators = BoundTensor(0, result.shape if kernel.needs_accumulators else (0,), "float32")
    scale = call.attrs.any("scale")
    bias, before = call.tensors.get("bias"), []
    wide = 0 if bias is None else -(-columns // kernel.bias_alignment) * kernel.bias_alignment
    padded = bias._replace(shape=(*bias.shape[:-1], wide)) if bias is not None and wide != columns else None
    start = call.workspace(align(accumulators.nbytes) + (padded.nbytes if padded else 0))
    accumulators = accumulators._replace(address=start)
    if bias is not None and padded is not None:
        padded = padded._replace(address=start + align(accumulators.nbytes))
        before.append(_pad(call.kernels["pad"][0], bias, padded))
        bias = padded
    given = arguments(
        "attention", batch=batch, rows=rows, columns=columns, heads=heads, shared_heads=shared, size=size,
        value_size=value_size, queries=queries, keys=keys, values=values, bias=bias,
        starts_q=starts[0], starts_k=starts[1], result=result,
        accumulators=accumulators if kernel.needs_accumulators else None, **_bias_strides(bias),
        row_q=row_sizes[0], row_k=row_sizes[1], row_v=row_sizes[2], mask=MASKS[call.attrs.text("causal")],
        scale=float(size**-0.5 if scale is None else scale),
    )  # fmt: skip
    return [*before, PlannedLaunch(kernel, blocks(math.ceil(rows / kernel.queries), heads, batch), given, lanes=32)]


def _pad(kernel: PadKernel, x: BoundTensor, y: BoundTensor) -> PlannedLaunch:
    rows, wide = math.prod(y.shape[:-1]), y.shape[-1]
    given = arguments("pad", rows=rows, columns=x.shape[-1], wide=wide, x=x, y=y)
    return PlannedLaunch(kernel, blocks(math.ceil(rows * wide / 256)), given)


def _bias_strides(bias: BoundTensor | None) -> dict[str, int]:
    """Return the bias's strides of batch, head and row in elements: 0 where they share it."""
    names = ("bias_batch", "bias_head", "bias_row")
    if bias is None:
        return dict.fromkeys(names, 0)
    shape = (1,) * (4 - len(bias.shape)) + bias.shape
    steps = [math.prod(shape[axis + 1 :]) if shape[axis] > 1 else 0 for axis in range(3)]
    return dict(zip(names, steps, strict=True))


# --- norms ------------------------------------------------------------------------------------------------------------
def norm(call: Call) -> list[Step]:
    """Launch a normalisation of rows."""
    kernel: NormKernel = call.kernels["norm"][0]
    x = call["x"]
    columns = x.shape[-1]
    given = arguments(
        "norm", columns=columns, x=x, gamma=call["gamma"], beta=call.tensors.get("beta"), y=call.output,
        epsilon=float(call.attrs.any("epsilon")),
    )  # fmt: skip
    return [PlannedLaunch(kernel, blocks(math.prod(x.shape[:-1])), given)]


PLANS: Mapping[str, Callable[[Call], list[Step]]] = {
    "gemm": gemm,
    "decode_matmul": decode_matmul,
    "conv2d": conv2d,
    "attention": attention,
    "stacked_attention": stacked_attention,
    "layer_norm": norm,
    "rms_norm": norm,
}
