"""Candidate kernels of a composite, by purpose, from the attributes that its check recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelyard import dtypes
from kernelyard_cuda.driver_api import capability_of
from kernelyard_cutlass.description import representative
from kernelyard_cutlass.epilogue import Epilogue
from kernelyard_cutlass.gpus import gpu_of
from kernelyard_cutlass.kernels import (
    AttentionKernel,
    Conv2dKernel,
    DecodeRowsKernel,
    DequantizeKernel,
    GemmKernel,
    Kernel,
    NormKernel,
    PadKernel,
    Tile,
    TransposeKernel,
)
from kernelyard_cutlass.tiles import REPRESENTATIVE_ROWS, REPRESENTATIVE_SIZE, Problem, choose_tiles, tiles_for

TUNED = 6  # tiles that are compared where it is measured
DECODE_THREADS, DECODE_ROWS = 128, 4
DEQUANTIZE_THREADS = 256
# Rows of queries, rows of keys, and the widest values that stay in registers.
ATTENTION_BLOCKS = ((64, 64, 64), (32, 128, 128), (32, 128, 65536))

Choices = Mapping[str, Any]
Kernels = dict[str, Sequence[Kernel]]


def kernels_of(choices: Choices) -> Kernels:
    """Return the kernels of a composite, by role; where one is to be chosen at run time, several."""
    return FAMILIES[choices["family"]](choices)


def _tiles(choices: Choices) -> tuple[Tile, ...]:
    """Return the best of all tiles for the sizes that are known, or for each of those that stand for unknown ones."""
    dtype = choices["dtype"]
    itemsize = dtypes.itemsize(dtype)
    gpus = dict.fromkeys(gpu_of(capability_of(arch)) for arch in choices["archs"] or (None,))
    copied = min(choices["alignment_a"], choices["alignment_b"]) * itemsize
    m, n, k, batch = choices["problem"]
    rows = (m,) if isinstance(m, int) else tuple(representative(m, value) for value in REPRESENTATIVE_ROWS)
    columns = representative(n, REPRESENTATIVE_SIZE)
    problems = [Problem(max(1, size), columns, k, representative(batch, 1), itemsize) for size in rows]
    found: dict[Tile, None] = {}
    for gpu in gpus:
        tiles = tiles_for(choices["math"], copied, gpu, itemsize)
        found.update(
            dict.fromkeys(choose_tiles(tiles, problems, choices["math"], gpu, TUNED if choices["tune"] else 1))
        )
    return tuple(found)


def _product(choices: Choices) -> dict[str, Any]:
    return {name: choices[name] for name in ("dtype", "output", "math", "alignment_a", "alignment_b", "alignment_c")}


def _epilogue(choices: Choices) -> Epilogue:
    return Epilogue(choices["activation"], choices["combine"], choices["final"])


def _gemm(choices: Choices) -> Kernels:
    common = {**_product(choices), "epilogue": _epilogue(choices), "column_major": choices["column_major"]}
    return {"gemm": [GemmKernel(tile=tile, **common) for tile in _tiles(choices)]}


def _decode(choices: Choices) -> Kernels:
    dtype, bits = choices["dtype"], choices["bits"]
    few = DecodeRowsKernel(dtype, bits, DECODE_THREADS, choices["output"], DECODE_ROWS, _epilogue(choices))
    return {"rows": [few], "dequantize": [DequantizeKernel(dtype, bits, DEQUANTIZE_THREADS)], **_gemm(choices)}


def _conv2d(choices: Choices) -> Kernels:
    common = {**_product(choices), "epilogue": _epilogue(choices), "algorithm": choices["algorithm"]}
    kernels: Kernels = {"conv2d": [Conv2dKernel(tile=tile, **common) for tile in _tiles(choices)]}
    if choices["transposes"]:
        kernels["transpose"] = [TransposeKernel(choices["dtype"])]
    return kernels


def _attention(choices: Choices) -> Kernels:
    sizes = next(block for block in ATTENTION_BLOCKS if choices["value_size"] <= block[2])
    kernel = AttentionKernel(choices["dtype"], choices["is_aligned"], choices["has_bias"], *sizes)
    pads: Kernels = {"pad": [PadKernel(choices["dtype"])]} if choices["pads"] else {}
    return {"attention": [kernel], **pads}


def _norm(choices: Choices) -> Kernels:
    return {"norm": [NormKernel(choices["dtype"], choices["is_rms"], choices["alignment"], choices["threads"])]}


FAMILIES: Mapping[str, Callable[[Choices], Kernels]] = {
    "gemm": _gemm,
    "decode": _decode,
    "conv2d": _conv2d,
    "attention": _attention,
    "norm": _norm,
}
