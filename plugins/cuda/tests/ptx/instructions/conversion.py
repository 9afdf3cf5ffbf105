"""Conversions between types. Source: PTX ISA 9.7.9, "cvt" and "cvt.pack"."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ptx.block import Block
from ptx.parser import Instruction
from ptx.scalars import PACKED, SCALARS, flushed, is_float, nbytes_of, rounded, to_tf32

from .arithmetic import rounding_of

WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def convert(block: Block, it: Instruction) -> None:
    to, source = it.types
    if to in PACKED and len(it.operands) == 3:
        _convert_two(block, it, to, source)
        return
    values = block.read(it.operands[1], source)
    if it.has("ftz") and source == "f32":
        values = flushed(values)
    if is_float(to):
        exact = _whole(it, values.astype(np.float64)) if is_float(source) else values
        _write_float(block, it, exact, to)
    elif is_float(source):
        block.write(it.operands[0], _to_integer(_whole(it, values.astype(np.float64)), to), to)
    else:
        block.write(it.operands[0], _clipped(values, to) if it.has("sat") else values.astype(SCALARS[to]), to)


def _whole(it: Instruction, values: np.ndarray) -> np.ndarray:
    mode = next((mode for mode in WHOLE if it.has(mode)), None)
    return values if mode is None else WHOLE[mode](values)


def _write_float(block: Block, it: Instruction, exact: np.ndarray, to: str) -> None:
    if exact.dtype.kind in "iu":  # from whole numbers of 64 bits with one rounding
        near = exact.astype(SCALARS[to])
        value = near if rounding_of(it) == "rn" else rounded(exact.astype(np.float64), to, rounding_of(it))
    elif to == "tf32":
        value = to_tf32(exact.astype(np.float32))
    else:
        value = rounded(exact, to, rounding_of(it))
    if it.has("sat"):
        value = np.where(np.isnan(value), np.zeros_like(value), np.clip(value, 0, 1))
    if it.has("relu"):
        value = np.where(value < 0, np.zeros_like(value), value)
    block.write(it.operands[0], value, to)


def _convert_two(block: Block, it: Instruction, to: str, source: str) -> None:
    """The first operand goes to the upper half."""
    high, low = (block.read(each, source).astype(np.float64) for each in it.operands[1:3])
    both = np.stack([low, high], 1)
    if it.has("satfinite"):
        most = float(np.array(_largest(PACKED[to])))
        both = np.where(np.isnan(both), both, np.clip(both, -most, most))
    if it.has("relu"):
        both = np.where(both < 0, 0, both)
    block.write(it.operands[0], rounded(both, to, rounding_of(it)), to)


def _largest(name: str) -> float:
    return float(ml_dtypes.finfo(SCALARS[name]).max)


def _to_integer(values: np.ndarray, to: str) -> np.ndarray:
    """Saturate; NaN becomes 0, or of 64 bits the highest bit alone."""
    limits = np.iinfo(SCALARS[to])
    too_high, too_low, is_nan = values >= float(limits.max), values <= float(limits.min), np.isnan(values)
    inside = np.where(too_high | too_low | is_nan, 0, values).astype(SCALARS[to])
    nan = np.uint64(1 << 63).astype(SCALARS[to]) if nbytes_of(to) == 8 else 0
    found = np.where(too_high, limits.max, np.where(too_low, limits.min, inside))
    return np.where(is_nan, nan, found).astype(SCALARS[to])


def _clipped(values: np.ndarray, to: str) -> np.ndarray:
    limits, own = np.iinfo(SCALARS[to]), np.iinfo(values.dtype)
    return np.clip(values, max(limits.min, own.min), min(limits.max, own.max)).astype(SCALARS[to])


HANDLERS = {"cvt": convert}
