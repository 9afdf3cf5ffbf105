"""PTX's types as those of NumPy, and how results are rounded.

Source: PTX ISA, sections "Types", "Floating-Point Instructions: Rounding Modifiers".
"""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np

from .errors import PtxError

# The types of one element. Untyped bits are unsigned.
SCALARS: dict[str, np.dtype] = {
    **{f"{kind}{8 * n}": np.dtype(f"{'i' if kind == 's' else 'u'}{n}") for kind in "usb" for n in (1, 2, 4, 8)},
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
# Two elements in a register, the first in its lower half.
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}
TYPES = {*SCALARS, *PACKED, "pred"}
MANTISSA_BITS_OF_F32, MANTISSA_BITS_OF_TF32 = 23, 10


def nbytes_of(name: str) -> int:
    """Return the bytes of a type. Raises: PtxError for one that has none."""
    if name in PACKED:
        return 2 * nbytes_of(PACKED[name])
    if name not in SCALARS:
        raise PtxError(f"the type .{name} is unknown")
    return SCALARS[name].itemsize


def is_float(name: str) -> bool:
    return name in PACKED or (name in SCALARS and SCALARS[name].kind not in "iu")


def literal(text: str, name: str) -> int:
    """Return the bits of a number as it is written, for an operand of a type."""
    nbytes = 1 if name == "pred" else nbytes_of(name)
    if text[:2] in ("0f", "0F", "0d", "0D"):
        bits = int(text[2:], 16)
        if name == "f64" and text[1] in "fF":
            (bits,) = struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0]))
        return bits
    if "." in text:
        return int.from_bytes(np.array(float(text), SCALARS[name]).tobytes(), "little")
    try:
        return int(text.rstrip("U"), 0) & ((1 << 8 * nbytes) - 1)
    except ValueError as error:
        raise PtxError(f"{text} is no number") from error


def typed(bits: np.ndarray, name: str) -> np.ndarray:
    """Return bits of registers as a type: of the lower ones where it is narrower; (lanes, 2) for a packed one."""
    if name == "pred":
        return bits
    nbytes = nbytes_of(name)
    if bits.dtype.itemsize < nbytes:
        raise PtxError(f"a register of {bits.dtype.itemsize} bytes is too narrow for .{name}")
    bits = np.ascontiguousarray(bits.astype(f"u{nbytes}", copy=False))
    if name in PACKED:
        return bits.view(SCALARS[PACKED[name]]).reshape(-1, 2)
    return bits.view(SCALARS[name])


def bits_of(values: np.ndarray, name: str, nbytes: int) -> np.ndarray:
    """Return values of a type as bits of registers of some width: signed ones are sign-extended."""
    if name in PACKED:
        packed = np.ascontiguousarray(values, SCALARS[PACKED[name]])
        return packed.view(f"u{nbytes_of(name)}").reshape(-1).astype(f"u{nbytes}", copy=False)
    dtype = SCALARS[name]
    if nbytes < dtype.itemsize:
        raise PtxError(f"a register of {nbytes} bytes is too narrow for .{name}")
    values = np.ascontiguousarray(values.astype(dtype, copy=False))
    if dtype.kind == "i":
        return values.astype(f"i{nbytes}", copy=False).view(f"u{nbytes}")
    return values.view(f"u{dtype.itemsize}").astype(f"u{nbytes}", copy=False)


def add_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return sums of float64, rounded to odd where they are inexact: rounded again, to a narrower type, they are right.

    Source: S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
    odd".
    """
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    is_even = total.view(np.int64) & 1 == 0
    is_inexact = np.isfinite(total) & (error != 0)
    neighbor = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(is_inexact & is_even, neighbor, total)


def rounded(exact: np.ndarray, name: str, mode: str) -> np.ndarray:
    """Return float64 values in a floating-point type, rounded to nearest (rn), to zero (rz), down (rm) or up (rp)."""
    if name == "tf32":
        return to_tf32(exact.astype(np.float32))
    dtype = SCALARS[PACKED.get(name, name)]
    near = exact.astype(dtype)
    if mode == "rn":
        return near
    wide = near.astype(np.float64)
    too_high = (wide > exact) & ((mode == "rm") | ((mode == "rz") & (exact > 0)))
    too_low = (wide < exact) & ((mode == "rp") | ((mode == "rz") & (exact < 0)))
    down, up = (np.nextafter(near, np.array(end, dtype)) for end in (-np.inf, np.inf))
    return np.where(too_high, down, np.where(too_low, up, near))


def to_tf32(values: np.ndarray) -> np.ndarray:
    """Return float32 with the mantissa of tf32, rounded to nearest, halves away from zero (cvt.rna)."""
    spare = MANTISSA_BITS_OF_F32 - MANTISSA_BITS_OF_TF32
    bits = values.view(np.uint32)
    kept = (bits + np.uint32(1 << (spare - 1))) & np.uint32(~((1 << spare) - 1) & 0xFFFFFFFF)
    return np.where(np.isfinite(values), kept, bits).view(np.float32)


def flushed(values: np.ndarray) -> np.ndarray:
    """Return values with zeros of their sign in place of what is subnormal (.ftz)."""
    tiny = ml_dtypes.finfo(values.dtype).smallest_normal
    return np.where(np.abs(values) < tiny, np.copysign(np.zeros_like(values), values), values)
