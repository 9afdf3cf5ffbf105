"""Split blocks of GGUF into planes: integers, scales and minima, as they are stored; weight = code * scale + minimum.

The layouts are those of ggml (ggml-common.h, ggml-quants.c): what a file means, read off its definition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from kernelyard_llm.errors import ModelFileError
from kernelyard_llm.gguf import StoredTensor

# The values of IQ4_NL by what is stored.
_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_FLOATS = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True, eq=False)
class Planes:
    """A quantized matrix: codes (rows, columns) int8; scales and minima (rows, columns / group), float16 or float32.

    bits: of a code, 4 (from -8 to 7, or 0 to 15) or 8. minima: None where they are all 0.
    """

    bits: int
    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    @property
    def group(self) -> int:
        """Numbers of a row that share a scale."""
        return self.codes.shape[-1] // self.scales.shape[-1]

    def rows(self, order: np.ndarray | slice) -> Planes:
        """Return some rows, in an order."""
        minima = None if self.minima is None else self.minima[order]
        return Planes(self.bits, self.codes[order], self.scales[order], minima)

    def floats(self) -> np.ndarray:
        """Return the numbers that are meant."""
        wide = self.codes.astype(np.float32).reshape(*self.scales.shape, self.group)
        numbers = wide * self.scales.astype(np.float32)[..., None]
        if self.minima is not None:
            numbers += self.minima.astype(np.float32)[..., None]
        return numbers.reshape(self.codes.shape)


def split_blocks(tensor: StoredTensor) -> np.ndarray | Planes:
    """Return a tensor as an array, where it has floats, or as planes.

    Raises: ModelFileError for a quantized tensor of one axis or more than three.
    """
    dtype = _FLOATS.get(tensor.type.name)
    if dtype is not None:
        return tensor.data.view(dtype).reshape(tensor.shape)
    if len(tensor.shape) != 2:
        raise ModelFileError(
            f"the tensor {tensor.name!r} is quantized, and no matrix", found=tensor.shape, expected="two axes"
        )
    blocks = tensor.data.reshape(len(tensor.data), -1, tensor.type.nbytes)
    return _SPLITS[tensor.type.name](blocks)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Return the float16 at a byte of each block."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0]


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Return the low halves of bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).view(np.int8)


def _fields(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return fields of bytes (..., bytes) as (..., fields of a byte, bytes), the lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return packed[..., None, :] >> shifts & np.uint8((1 << bits) - 1)


def _flat(codes: np.ndarray) -> np.ndarray:
    return codes.reshape(len(codes), -1)


def _planes(bits: int, codes: np.ndarray, scales: np.ndarray, minima: np.ndarray | None = None) -> Planes:
    """Return planes of codes (rows, blocks, ...)."""
    return Planes(bits, _flat(codes), _flat(scales), None if minima is None else _flat(minima))


def _q4_0(blocks: np.ndarray) -> Planes:
    return _planes(4, _nibbles(blocks[..., 2:]) - np.int8(8), _half(blocks, 0))


def _q4_1(blocks: np.ndarray) -> Planes:
    return _planes(4, _nibbles(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2))


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    bits = np.unpackbits(np.ascontiguousarray(blocks[..., at : at + 4]), axis=-1, bitorder="little")
    return (bits << 4).view(np.int8)


def _q5_0(blocks: np.ndarray) -> Planes:
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks, 2)
    return _planes(8, codes - np.int8(16), _half(blocks, 0))


def _q5_1(blocks: np.ndarray) -> Planes:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks, 4)
    return _planes(8, codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: np.ndarray) -> Planes:
    return _planes(8, blocks[..., 2:].view(np.int8), _half(blocks, 0))


def _iq4_nl(blocks: np.ndarray) -> Planes:
    return _planes(8, _IQ4_NL[_nibbles(blocks[..., 2:])], _half(blocks, 0))


def _iq4_xs(blocks: np.ndarray) -> Planes:
    packed = blocks[..., 8:136].reshape(*blocks.shape[:-1], 8, 16)
    low = _fields(blocks[..., 4:8], 4).swapaxes(-1, -2).reshape(*blocks.shape[:-1], 8)
    high = _fields(blocks[..., 2:4], 2).swapaxes(-1, -2).reshape(*blocks.shape[:-1], 8)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    return _planes(8, _IQ4_NL[_nibbles(packed)], _scale_groups(_half(blocks, 0), scales))


def _scale_groups(factor: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the scales of groups: what a super-block has in few bits, times its float16."""
    return factor.astype(np.float32)[..., None] * scales.astype(np.float32)


def _six_bits(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eight scales and eight minima of six bits each that Q4_K and Q5_K keep in twelve bytes."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return scales, minima


def _q4_k(blocks: np.ndarray) -> Planes:
    scales, minima = _six_bits(blocks[..., 4:16])
    packed = blocks[..., 16:144].reshape(*blocks.shape[:-1], 4, 32)
    codes = _fields(packed, 4).view(np.int8)
    return _planes(4, codes, _scale_groups(_half(blocks, 0), scales), -_scale_groups(_half(blocks, 2), minima))


def _q5_k(blocks: np.ndarray) -> Planes:
    scales, minima = _six_bits(blocks[..., 4:16])
    low = _fields(blocks[..., 48:176].reshape(*blocks.shape[:-1], 4, 32), 4)
    high = _fields(blocks[..., 16:48], 1).reshape(*blocks.shape[:-1], 4, 2, 32)
    codes = (low | high << 4).view(np.int8)
    return _planes(8, codes, _scale_groups(_half(blocks, 0), scales), -_scale_groups(_half(blocks, 2), minima))


def _q2_k(blocks: np.ndarray) -> Planes:
    packed = blocks[..., 16:80].reshape(*blocks.shape[:-1], 2, 32)
    codes = _fields(packed, 2).view(np.int8)
    scales = _scale_groups(_half(blocks, 80), blocks[..., :16] & 15)
    minima = -_scale_groups(_half(blocks, 82), blocks[..., :16] >> 4)
    return _planes(4, codes, scales, minima)


def _q3_k(blocks: np.ndarray) -> Planes:
    outer = blocks.shape[:-1]
    low = _fields(blocks[..., 32:96].reshape(*outer, 2, 32), 2)
    high = _fields(blocks[..., :32], 1).reshape(*outer, 2, 4, 32)
    codes = (low | high << 2).view(np.int8) - np.int8(4)
    packed = blocks[..., 96:108]
    fours = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    twos = _fields(packed[..., 8:12], 2).reshape(*outer, 16)
    scales = (fours | twos << 4).view(np.int8) - np.int8(32)
    return _planes(4, codes, _scale_groups(_half(blocks, 108), scales))


def _q6_k(blocks: np.ndarray) -> Planes:
    outer = blocks.shape[:-1]
    low = _fields(blocks[..., :128].reshape(*outer, 2, 64), 4).reshape(*outer, 2, 4, 32)
    high = _fields(blocks[..., 128:192].reshape(*outer, 2, 32), 2)
    codes = (low | high << 4).view(np.int8) - np.int8(32)
    return _planes(8, codes, _scale_groups(_half(blocks, 208), blocks[..., 192:208].view(np.int8)))


_SPLITS: dict[str, Callable[[np.ndarray], Planes]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
