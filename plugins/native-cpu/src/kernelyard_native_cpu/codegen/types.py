"""Element types: how they lie in memory, what they are computed in, and the conversions between the two."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelyard import dtypes
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import BITS, Value, float_literal
from kernelyard_native_cpu.codegen.elementary import clamp, magnitude


@dataclass(frozen=True)
class SmallFloat:
    """A float of fewer than 32 bits. `finite_only`: no infinity, and one NaN (the largest code)."""

    storage: str
    mantissa: int
    bias: int
    finite_only: bool = False

    @property
    def infinity(self) -> int:
        """The code of infinity (of NaN, where there is none)."""
        exponent_bits = BITS[self.storage] - 1 - self.mantissa
        largest = (1 << (exponent_bits + self.mantissa)) - 1
        return largest if self.finite_only else largest - ((1 << self.mantissa) - 1)


SMALL_FLOATS = {
    "float16": SmallFloat("i16", 10, 15),
    "bfloat16": SmallFloat("i16", 7, 127),
    "float8_e4m3fn": SmallFloat("i8", 3, 7, finite_only=True),
    "float8_e5m2": SmallFloat("i8", 2, 15),
}
_LARGE_FLOATS = {"float32": "float", "float64": "double"}


def compute_type(dtype: str) -> str:
    """Return the LLVM type that values of a dtype have in registers: small floats are computed in float."""
    if dtype == "bool":
        return "i1"
    if dtypes.is_float(dtype):
        return _LARGE_FLOATS.get(dtype, "float")
    return f"i{8 * dtypes.itemsize(dtype)}"


def storage_type(dtype: str) -> str:
    """Return the LLVM type of an element in memory."""
    if dtype == "bool":
        return "i8"
    return SMALL_FLOATS[dtype].storage if dtype in SMALL_FLOATS else compute_type(dtype)


def decode(e: FunctionEmitter, stored: Value, dtype: str, has_half: bool) -> Value:
    """Convert a value from its memory format to its register format."""
    if dtype == "bool":
        return e.compare("ne", stored, 0)
    if dtype not in SMALL_FLOATS:
        return stored
    if dtype == "float16" and has_half:
        return e.convert("fpext", e.convert("bitcast", stored, "half"), "float")
    return _decode_small(e, stored, SMALL_FLOATS[dtype])


def encode(e: FunctionEmitter, value: Value, dtype: str, has_half: bool) -> Value:
    """Convert a value from its register format to its memory format; narrow floats round to nearest even."""
    if dtype == "bool":
        return e.convert("zext", value, "i8")
    if dtype not in SMALL_FLOATS:
        return value
    if dtype == "float16" and has_half:
        # Without the fence LLVM may round a double straight to half, by a function that is in no library here.
        fenced = e.intrinsic("arithmetic.fence", value)
        return e.convert("bitcast", e.convert("fptrunc", fenced, "half"), "i16")
    return _encode_small(e, value, SMALL_FLOATS[dtype])


def _decode_small(e: FunctionEmitter, stored: Value, small: SmallFloat) -> Value:
    bits = e.convert("zext", stored, "i32")
    sign_bit = BITS[small.storage] - 1
    if small.bias == 127:  # bfloat16 is the upper half of a float
        return e.convert("bitcast", e.binary("shl", bits, 16), "float")
    code = e.binary("and", bits, (1 << sign_bit) - 1)
    # The code as the upper bits of a float is the value but for the bias: one exact multiplication mends that.
    tiny = e.convert("bitcast", e.binary("shl", code, 23 - small.mantissa), "float")
    value = e.mul(tiny, 2.0 ** (127 - small.bias))
    special = e.compare("uge", code, small.infinity)
    extreme = float_literal(math.nan if small.finite_only else math.inf)
    if not small.finite_only:
        extreme = e.select(e.compare("ugt", code, small.infinity), math.nan, extreme)
    value = e.select(special, extreme, value)
    sign = e.binary("shl", e.binary("lshr", bits, sign_bit), 31)
    return e.convert("bitcast", e.binary("or", e.convert("bitcast", value, "i32"), sign), "float")


def _encode_bfloat16(e: FunctionEmitter, value: Value) -> Value:
    """Return the upper half of a float: half a unit less one is added, plus one when the last kept bit is odd."""
    bits = e.convert("bitcast", value, "i32")
    odd = e.binary("and", e.binary("lshr", bits, 16), 1)
    rounded = e.add(e.add(bits, 0x7FFF), odd)
    rounded = e.select(e.compare("uno", value, value), 0x7FFF0000, rounded)
    return e.convert("trunc", e.binary("lshr", rounded, 16), "i16")


def _encode_small(e: FunctionEmitter, value: Value, small: SmallFloat) -> Value:
    if small.bias == 127:
        return _encode_bfloat16(e, value)
    bits = e.convert("bitcast", value, "i32")
    sign_bit = BITS[small.storage] - 1
    dropped = 23 - small.mantissa
    size = e.binary("and", bits, 0x7FFFFFFF)
    # Normal numbers: half a unit less one, plus one when the last kept bit is odd, then cut.
    odd = e.binary("and", e.binary("lshr", size, dropped), 1)
    rounded = e.add(e.add(size, (1 << (dropped - 1)) - 1), odd)
    code = e.sub(e.binary("lshr", rounded, dropped), (127 - small.bias) << small.mantissa)
    # Denormal ones: adding a power of two lets the addition itself round at the right bit.
    smallest = 2.0 ** (1 - small.bias)
    magic = float_literal(smallest * 2.0**dropped)
    summed = e.convert("bitcast", e.binary("add", magnitude(e, value), magic, flags="nsz"), "i32")
    tiny = e.sub(summed, e.convert("bitcast", e.broadcast(magic, value.lanes), "i32"))
    code = e.select(e.compare("olt", magnitude(e, value), smallest), tiny, code)
    code = e.select(e.compare("sgt", code, small.infinity), small.infinity, code)
    code = e.select(e.compare("uno", value, value), (1 << sign_bit) - 1, code)
    code = e.binary("or", code, e.binary("shl", e.binary("lshr", bits, 31), sign_bit))
    return e.convert("trunc", code, small.storage)


def cast(e: FunctionEmitter, value: Value, source: str, target: str, has_half: bool) -> Value:
    """Return a conversion between dtypes, on values in registers; a small float target is rounded to."""
    if source == target:
        return value
    to = compute_type(target)
    if target == "bool":
        return e.compare("une" if value.is_float else "ne", value, 0)
    if value.is_float and not dtypes.is_float(target):
        return _float_to_int(e, value, target)
    converted = e.convert(_conversion(value, source, target), value, to)
    if target in SMALL_FLOATS and not _holds(target, source):
        return decode(e, encode(e, converted, target, has_half), target, has_half)
    return converted


def _conversion(value: Value, source: str, target: str) -> str:
    """LLVM's instruction that makes a number of one dtype one of another in registers."""
    is_signed = source in dtypes.SIGNED
    if not value.is_float and dtypes.is_float(target):
        return "sitofp" if is_signed else "uitofp"
    if BITS[compute_type(target)] > BITS[value.type]:
        return "fpext" if value.is_float else "sext" if is_signed else "zext"
    return "fptrunc" if value.is_float else "trunc"


def _holds(target: str, source: str) -> bool:
    """Return True when every value of one small float is one of the other."""
    if source not in SMALL_FLOATS:
        return False
    wide, narrow = SMALL_FLOATS[target], SMALL_FLOATS[source]
    return wide.mantissa >= narrow.mantissa and wide.bias >= narrow.bias and not wide.finite_only


def _float_to_int(e: FunctionEmitter, value: Value, target: str) -> Value:
    """Truncation toward zero; what does not fit saturates at 32 or 64 bits, then wraps; NaN gives 0."""
    to = compute_type(target)
    if BITS[to] == 64 or target == "uint32":
        wide = e.intrinsic("fptoui.sat" if target == "uint64" else "fptosi.sat", value, result="i64")
        return e.convert("trunc", wide, to)
    # LLVM takes the intrinsic apart where vectors have no instruction for it; limits of our own stay vectors.
    sane = e.select(e.compare("uno", value, value), 0.0, value)
    highest = 2.0**31 - (128 if value.type == "float" else 1)
    whole = e.convert("fptosi", clamp(e, sane, -(2.0**31), highest), "i32")
    return e.convert("trunc", e.select(e.compare("oge", sane, 2.0**31), 2**31 - 1, whole), to)
