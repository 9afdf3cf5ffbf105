"""Kernel descriptions: a template and its typed parameters, known to compiler and runtime.

A parameter that is not here does not exist: the text, the entry of the cache, and what stands in for the kernel on the
emulator all follow from these values alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeAlias, get_type_hints

from kernelyard import dtypes
from kernelyard.runtime.api import Fields, corrupted
from kernelyard_cutlass.epilogue import ACTIVATIONS, COMBINATIONS, IDENTITY, NONE, Epilogue

ELEMENTS = {
    "float16": "cutlass::half_t",
    "bfloat16": "cutlass::bfloat16_t",
    "float32": "float",
    "int8": "int8_t",
    "int32": "int32_t",
}
# Bytes that the tensor cores' operands are brought by at once: at most 16, and at least 4 for copies that overlap.
MOST_ACCESS_NBYTES = 16
LEAST_COPY_NBYTES = 4


@dataclass(frozen=True)
class Math:
    """The math mode of a dtype's matmul. instruction: rows, columns and depth of one instruction."""

    accumulator: str
    operator: str
    instruction: tuple[int, int, int]


# "3xtf32" splits each float into two halves of the precision, and is about as exact as float32.
MATHS = {
    "float16": Math("float", "OpMultiplyAdd", (16, 8, 16)),
    "bfloat16": Math("float", "OpMultiplyAdd", (16, 8, 16)),
    "tf32": Math("float", "OpMultiplyAdd", (16, 8, 8)),
    "3xtf32": Math("float", "OpMultiplyAddFastF32", (16, 8, 8)),
    "int8": Math("int32_t", "OpMultiplyAddSaturate", (16, 8, 32)),
}


@dataclass(frozen=True)
class Tile:
    """The tile sizes of a kernel: rows, columns and depth of a thread block and of a warp; stages in shared memory."""

    m: int
    n: int
    k: int
    warp_m: int
    warp_n: int
    stages: int

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return (self.m // self.warp_m) * (self.n // self.warp_n)

    def shared_nbytes(self, itemsize: int) -> int:
        """Return the bytes of operands that a block holds in shared memory."""
        return self.stages * (self.m + self.n) * self.k * itemsize

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}/{self.warp_m}x{self.warp_n}/{self.stages}"


@dataclass(frozen=True)
class _Product:
    """Parameters common to matmul and convolution kernels.

    dtype: of the operands; output: of the result, and of what is added to it. math: of `MATHS`. Alignments are in
    elements.
    """

    dtype: str
    output: str
    math: str
    alignment_a: int
    alignment_b: int
    alignment_c: int
    tile: Tile
    epilogue: Epilogue

    def defines(self) -> dict[str, Any]:
        """Return the template's parameters."""
        math, tile = MATHS[self.math], self.tile
        return {
            "KY_INPUT": ELEMENTS[self.dtype],
            "KY_OUTPUT": ELEMENTS[self.output],
            "KY_ACCUMULATOR": math.accumulator,
            "KY_COMPUTE": math.accumulator,
            "KY_OPERATOR": f"cutlass::arch::{math.operator}",
            "KY_INSTRUCTION": _sizes(*math.instruction),
            "KY_TILE": _sizes(tile.m, tile.n, tile.k),
            "KY_WARP": _sizes(tile.warp_m, tile.warp_n, tile.k),
            "KY_STAGES": tile.stages,
            "KY_ALIGNMENT_A": self.alignment_a,
            "KY_ALIGNMENT_B": self.alignment_b,
            "KY_ALIGNMENT_C": self.alignment_c,
            **self.epilogue.defines(),
        }


@dataclass(frozen=True)
class GemmKernel(_Product):
    """A matmul, the left one row by row. column_major: the right one is stored column by column."""

    template: ClassVar[str] = "gemm"
    column_major: bool

    def defines(self) -> dict[str, Any]:
        """Return the template's parameters."""
        layout = "ColumnMajor" if self.column_major else "RowMajor"
        return {**super().defines(), "KY_LAYOUT_B": f"cutlass::layout::{layout}"}


@dataclass(frozen=True)
class Conv2dKernel(_Product):
    """A convolution with channels last. algorithm: how positions are found, "kOptimized" or "kAnalytic"."""

    template: ClassVar[str] = "conv2d"
    algorithm: str

    def defines(self) -> dict[str, Any]:
        """Return the template's parameters."""
        return {**super().defines(), "KY_ALGORITHM": self.algorithm}


@dataclass(frozen=True)
class AttentionKernel:
    """Fused attention. is_aligned: rows are read by 16 bytes. queries, keys: rows of a block. most_size: of values."""

    template: ClassVar[str] = "attention"
    dtype: str
    is_aligned: bool
    has_bias: bool
    queries: int
    keys: int
    most_size: int

    @property
    def needs_accumulators(self) -> bool:
        """True if the result is accumulated in a float workspace: values wider than a block, narrower than float."""
        return self.most_size > self.keys and self.dtype != "float32"

    @property
    def alignment(self) -> int:
        """Elements that sizes of heads are multiples of."""
        return MOST_ACCESS_NBYTES // dtypes.itemsize(self.dtype) if self.is_aligned else 4

    @property
    def bias_alignment(self) -> int:
        """Elements that rows of the bias are multiples of."""
        return MOST_ACCESS_NBYTES // dtypes.itemsize(self.dtype)

    def defines(self) -> dict[str, Any]:
        """Return the template's parameters."""
        return {
            "KY_INPUT": ELEMENTS[self.dtype],
            "KY_IS_ALIGNED": _flag(self.is_aligned),
            "KY_HAS_BIAS": _flag(self.has_bias),
            "KY_QUERIES": self.queries,
            "KY_KEYS": self.keys,
            "KY_MOST_SIZE": self.most_size,
        }


@dataclass(frozen=True)
class NormKernel:
    """Normalisation of rows by a block of threads each; is_rms: by the root of the mean square alone."""

    template: ClassVar[str] = "norm"
    dtype: str
    is_rms: bool
    alignment: int
    threads: int

    def defines(self) -> dict[str, Any]:
        """Return the template's parameters."""
        rms = {"KY_IS_RMS": 1} if self.is_rms else {}
        return {
            "KY_INPUT": ELEMENTS[self.dtype],
            "KY_ALIGNMENT": self.alignment,
            "KY_THREADS": self.threads,
            **rms,
        }


@dataclass(frozen=True)
class DequantizeKernel:
    """Weights of `bits` bits to floats."""

    template: ClassVar[str] = "dequantize"
    dtype: str
    bits: int
    threads: int

    def defines(self) -> dict[str, Any]:
        """Return the template's parameters."""
        return {
            "KY_INPUT": ELEMENTS[self.dtype],
            "KY_BITS": self.bits,
            "KY_WEIGHT": "int8_t" if self.bits == 8 else "cutlass::int4b_t",
            "KY_THREADS": self.threads,
        }


@dataclass(frozen=True)
class DecodeRowsKernel(DequantizeKernel):
    """A matmul of few rows with weights of `bits` bits; rows: those that a warp computes."""

    template: ClassVar[str] = "decode_rows"
    output: str
    rows: int
    epilogue: Epilogue

    def defines(self) -> dict[str, Any]:
        """Return the template's parameters."""
        own = {"KY_OUTPUT": ELEMENTS[self.output], "KY_ROWS": self.rows}
        return {**super().defines(), **own, "KY_ACTIVATION": IDENTITY, **self.epilogue.defines()}


@dataclass(frozen=True)
class TransposeKernel:
    """Matrices transposed, one after another: weights are brought to channels last."""

    template: ClassVar[str] = "transpose"
    dtype: str

    def defines(self) -> dict[str, Any]:
        """Return the template's parameters."""
        return {"KY_INPUT": ELEMENTS[self.dtype]}


@dataclass(frozen=True)
class PadKernel(TransposeKernel):
    """Rows made longer, so that each begins where it can be read by many bytes."""

    template: ClassVar[str] = "pad"


Kernel: TypeAlias = (
    GemmKernel
    | Conv2dKernel
    | AttentionKernel
    | NormKernel
    | DequantizeKernel
    | DecodeRowsKernel
    | TransposeKernel
    | PadKernel
)
KINDS: Mapping[str, type[Any]] = {
    kind.template: kind
    for kind in (
        GemmKernel,
        Conv2dKernel,
        AttentionKernel,
        NormKernel,
        DequantizeKernel,
        DecodeRowsKernel,
        TransposeKernel,
        PadKernel,
    )
}
# What values of text may be, so that text of an artifact never becomes text of a program unchecked.
_CHOICES = {
    "dtype": tuple(ELEMENTS),
    "output": tuple(ELEMENTS),
    "math": tuple(MATHS),
    "algorithm": ("kOptimized", "kAnalytic"),
    "activation": (NONE, *ACTIVATIONS),
    "combine": (NONE, *COMBINATIONS),
    "final": (NONE, *ACTIVATIONS),
}


def to_json(kernel: Kernel) -> dict[str, Any]:
    """Return the kernel as JSON data."""
    return {"template": kernel.template, **asdict(kernel)}


def read_kernel(value: object, where: str) -> Kernel:
    """Return the kernel that `to_json` wrote.

    Raises: ArtifactCorruptedError.
    """
    given = Fields(value, where)
    template = given.text("template")
    if template not in KINDS:
        raise corrupted(f"{where}.template", template, ", ".join(KINDS))
    return _read(KINDS[template], given)


def _read(kind: type[Any], given: Fields) -> Any:
    types = get_type_hints(kind)
    return kind(**{field.name: _read_field(given, field.name, types[field.name]) for field in fields(kind)})


def _read_field(given: Fields, name: str, type_: type[Any]) -> Any:
    value = given.any(name)
    if type_ in (Tile, Epilogue):
        return _read(type_, Fields(value, f"{given.where}.{name}"))
    if type(value) is not type_ or (type_ is int and not 0 < value < 1 << 20):
        raise corrupted(f"{given.where}.{name}", value, "a positive integer" if type_ is int else type_.__name__)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise corrupted(f"{given.where}.{name}", value, ", ".join(_CHOICES[name]))
    return value


def entry_of(kernel: Kernel) -> str:
    """Return the kernel's name in its program: equal for equal kernels, different for others.

    Example:
        >>> entry_of(NormKernel("float16", True, 8, 256)) == entry_of(NormKernel("float16", True, 8, 256))
        True
    """
    text = json.dumps(to_json(kernel), sort_keys=True)
    return f"ky_{kernel.template}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _sizes(*sizes: int) -> str:
    return ", ".join(map(str, sizes))


def _flag(value: bool) -> str:
    return "true" if value else "false"
