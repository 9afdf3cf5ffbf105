"""Arithmetic, bits, comparisons and conversions of the PTX interpreter, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx import PtxError
from ptx.snippets import apply

BFLOAT16 = ml_dtypes.bfloat16
RANDOM = np.random.default_rng(0)
X, Y, Z = RANDOM.standard_normal((3, 40)).astype(np.float32) * 50
A, B = RANDOM.integers(-(1 << 31), 1 << 31, (2, 40)).astype(np.int32)
U = A.view(np.uint32)
SHIFTS = np.arange(40, dtype=np.uint32)  # more than there are bits, too
SPECIAL = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3.5, -2.5, 2.5])


def check(instruction, result, wanted, *operands):
    names = {np.dtype(np.float16): "f16", np.dtype(BFLOAT16): "bf16"}
    typed = [(names.get(a.dtype, f"{a.dtype.kind.replace('i', 's')}{8 * a.dtype.itemsize}"), a) for a in operands]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(apply(instruction, *typed, result=result), wanted)


@pytest.mark.parametrize(
    ("instruction", "result", "wanted"),
    [
        ("add.s32 %0, %1, %2", "s32", A + B),
        ("sub.s32 %0, %1, %2", "s32", A - B),
        ("add.sat.s32 %0, %1, %2", "s32", np.clip(A.astype(np.int64) + B, -(1 << 31), (1 << 31) - 1)),
        ("mul.lo.s32 %0, %1, %2", "s32", A * B),
        ("mul.hi.s32 %0, %1, %2", "s32", A.astype(np.int64) * B >> 32),
        ("mul.wide.s32 %0, %1, %2", "s64", A.astype(np.int64) * B),
        ("mad.lo.s32 %0, %1, %2, -3", "s32", A * B - 3),
        ("div.s32 %0, %1, %2", "s32", np.trunc(A.astype(np.float64) / B)),
        ("rem.s32 %0, %1, %2", "s32", np.fmod(A, B)),
        ("min.s32 %0, %1, %2", "s32", np.minimum(A, B)),
        ("abs.s32 %0, %1", "s32", np.abs(A)),
        ("neg.s32 %0, %2", "s32", -B),
        ("and.b32 %0, %1, %2", "s32", A & B),
        ("xor.b32 %0, %1, 0x00FF00FF", "s32", A ^ 0xFF00FF),
        ("not.b32 %0, %1", "s32", ~A),
        ("shr.s32 %0, %1, 4", "s32", A >> 4),
        ("lop3.b32 %0, %1, %2, 0x0F0F0F0F, 0xE8", "s32", (A & B) | (A & 0xF0F0F0F) | (B & 0xF0F0F0F)),
        ("set.lt.s32.s32 %0, %1, %2", "s32", -(A < B).astype(np.int32)),
        ("slct.s32.s32 %0, 1, 2, %2", "s32", np.where(B >= 0, 1, 2)),
        ("dp4a.s32.s32 %0, %1, %2, 7", "s32", (A.view(np.int8).astype(int) * B.view(np.int8)).reshape(-1, 4).sum(1) + 7),
    ],
)  # fmt: skip
def test_whole_numbers(instruction, result, wanted):
    check(instruction, result, wanted, A, B)


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        ("shl.b32 %0, %1, %2", [int(a) << int(n) & 0xFFFFFFFF if n < 32 else 0 for a, n in zip(U, SHIFTS, strict=True)]),
        ("shr.u32 %0, %1, %2", [int(a) >> int(n) for a, n in zip(U, SHIFTS, strict=True)]),
        ("shf.l.wrap.b32 %0, %1, 1, %2", [((1 << 32 | int(a)) << int(n) % 32 >> 32) & 0xFFFFFFFF for a, n in zip(U, SHIFTS, strict=True)]),
        ("bfe.u32 %0, %1, %2, 5", [int(a) >> int(n) & 31 for a, n in zip(U, SHIFTS, strict=True)]),
        ("bfi.b32 %0, 0xFFFF, %1, %2, 3", [int(a) | (7 << int(n) & 0xFFFFFFFF) for a, n in zip(U, SHIFTS, strict=True)]),
        ("popc.b32 %0, %1", [int(a).bit_count() for a in U]),
        ("clz.b32 %0, %2", [32 - int(n).bit_length() for n in SHIFTS]),
        ("brev.b32 %0, %1", [int(f"{a:032b}"[::-1], 2) for a in U]),
        ("bfind.u32 %0, %2", [(int(n).bit_length() - 1) & 0xFFFFFFFF for n in SHIFTS]),
        ("prmt.b32 %0, %1, 0, 0x4103", [int(a) >> 24 | (int(a) & 0xFF) << 8 | (int(a) >> 8 & 0xFF) << 16 for a in U]),
    ],
)  # fmt: skip
def test_bits(instruction, wanted):
    check(instruction, "u32", np.array(wanted, np.uint32), U, SHIFTS)


def test_fields_of_signed_numbers_are_extended():
    wanted = [((int(a) >> 8 & 0xFF) ^ 0x80) - 0x80 for a in U]
    check("bfe.s32 %0, %1, 8, 8", "s32", wanted, A)


WIDE = X.astype(np.float64)


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        ("add.f32 %0, %1, %2", X + Y),
        ("sub.f32 %0, %1, %2", X - Y),
        ("mul.f32 %0, %1, %2", X * Y),
        ("div.rn.f32 %0, %1, %2", X / Y),
        ("fma.rn.f32 %0, %1, %2, %3", (WIDE * Y + Z).astype(np.float32)),
        ("max.f32 %0, %1, %2", np.maximum(X, Y)),
        ("min.f32 %0, %1, 0f00000000", np.minimum(X, 0)),
        ("abs.f32 %0, %1", np.abs(X)),
        ("neg.f32 %0, %1", -X),
        ("add.sat.f32 %0, %1, %2", np.clip(X + Y, 0, 1)),
        ("rcp.rn.f32 %0, %1", (1 / WIDE).astype(np.float32)),
        ("ex2.approx.ftz.f32 %0, %1", np.exp2(WIDE).astype(np.float32)),
        ("sin.approx.f32 %0, %1", np.sin(WIDE).astype(np.float32)),
        ("tanh.approx.f32 %0, %1", np.tanh(WIDE).astype(np.float32)),
        ("copysign.f32 %0, %1, %2", np.copysign(Y, X)),
    ],
)  # fmt: skip
def test_float32(instruction, wanted):
    check(instruction, "f32", wanted, X, Y, Z)


@pytest.mark.parametrize(("instruction", "function"), [("sqrt.rn", np.sqrt), ("lg2.approx", np.log2)])
def test_functions_of_positive_numbers(instruction, function):
    positive = np.abs(X)
    check(f"{instruction}.f32 %0, %1", "f32", function(positive.astype(np.float64)).astype(np.float32), positive)


@pytest.mark.parametrize(("mode", "direction"), [("rm", -np.inf), ("rp", np.inf)])
def test_directed_rounding(mode, direction):
    """1 + 2^-60 is next to 1, on the side that the mode says: though float64 cannot hold it."""
    one, tiny = np.float32([1, -1]), np.float32([2.0**-60, 2.0**-60])
    up = np.float32([np.nextafter(np.float32(1), np.float32(2)), np.nextafter(np.float32(-1), np.float32(0))])
    check(f"fma.{mode}.f32 %0, %1, 0f3F800000, %2", "f32", up if direction > 0 else one, one, tiny)


def test_nan_gives_way_unless_it_wins():
    other = np.full_like(SPECIAL, 1)
    check("max.f32 %0, %1, %2", "f32", np.fmax(SPECIAL, other), SPECIAL, other)
    check("max.NaN.f32 %0, %1, %2", "f32", np.maximum(SPECIAL, other), SPECIAL, other)
    smallest = apply("min.f32 %0, %1, 0f00000000", ("f32", SPECIAL), result="f32")
    assert np.signbit(smallest[1])  # -0 is less than 0


def test_subnormals_are_flushed():
    wanted = np.where(np.abs(SPECIAL) < 1e-38, np.copysign(np.float32(0), SPECIAL), SPECIAL)
    check("mul.ftz.f32 %0, %1, 0f3F800000", "f32", wanted, SPECIAL)


@pytest.mark.parametrize(("name", "dtype"), [("f16x2", np.float16), ("bf16x2", BFLOAT16)])
def test_two_elements_in_a_register(name, dtype):
    a, b, c = (each.reshape(20, 2).astype(dtype) for each in (X, Y, Z))
    operands = [(name, a), (name, b), (name, c)]
    wanted = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(dtype)
    np.testing.assert_array_equal(apply(f"fma.rn.{name} %0, %1, %2, %3", *operands, result=name), wanted)
    np.testing.assert_array_equal(apply(f"max.{name} %0, %1, %2", *operands, result=name), np.maximum(a, b))


@pytest.mark.parametrize("comparison", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_with_nan(comparison):
    function = {
        "eq": "equal",
        "ne": "not_equal",
        "lt": "less",
        "le": "less_equal",
        "gt": "greater",
        "ge": "greater_equal",
    }
    a, b = SPECIAL, SPECIAL[::-1].copy()
    unordered = np.isnan(a) | np.isnan(b)
    holds = getattr(np, function[comparison])(a, b)
    for suffix, wanted in (("", holds & ~unordered), ("u", holds | unordered)):
        text = f".reg .pred p; setp.{comparison}{suffix}.f32 p, %1, %2; selp.u32 %0, 1, 0, p"
        check(text, "u32", wanted, a, b)


def test_predicates_are_combined():
    text = ".reg .pred p, q, r; setp.gt.s32 p, %1, 0; setp.lt.and.s32 q|r, %2, 0, p; selp.b32 %0, 1, 2, q; @r mov.u32 %0, 3"
    wanted = np.where((B < 0) & (A > 0), 1, np.where((B >= 0) & (A > 0), 3, 2))
    check(text, "s32", wanted, A, B)


@pytest.mark.parametrize(
    ("instruction", "result", "operand", "wanted"),
    [
        ("cvt.f32.f16 %0, %1", "f32", X.astype(np.float16), X.astype(np.float16).astype(np.float32)),
        ("cvt.rn.f16.f32 %0, %1", "f16", X, X.astype(np.float16)),
        ("cvt.rn.bf16.f32 %0, %1", "bf16", X, X.astype(BFLOAT16)),
        ("cvt.rz.f16.f32 %0, %1", "f16", np.float32([1.9999, -1.9999]), np.float16([1.999, -1.999])),
        ("cvt.rni.s32.f32 %0, %1", "s32", np.float32([2.5, -3.5, np.nan, 1e20, -1e20]), [2, -4, 0, 2**31 - 1, -(2**31)]),
        ("cvt.rzi.u32.f32 %0, %1", "u32", np.float32([2.5, -3.5, 1e20]), [2, 0, 2**32 - 1]),
        ("cvt.rmi.f32.f32 %0, %1", "f32", X, np.floor(X)),
        ("cvt.rn.f32.s32 %0, %1", "f32", A, A.astype(np.float32)),
        ("cvt.sat.f32.f32 %0, %1", "f32", SPECIAL, [0, 0, 1, 0, 0, SPECIAL[5], 0, 1, 0, 1]),
        ("cvt.s64.s32 %0, %1", "s64", A, A),
        ("cvt.u16.u32 %0, %1", "u16", U, U & 0xFFFF),
        ("cvt.sat.s8.s32 %0, %1", "s8", A, np.where(A > 0, 127, -128)),
        ("cvt.rna.tf32.f32 %0, %1", "f32", np.float32([1 + 2**-11, 1 + 2**-12]), np.float32([1 + 2**-10, 1])),
    ],
)  # fmt: skip
def test_conversions(instruction, result, operand, wanted):
    check(instruction, result, np.asarray(wanted), operand)


def test_two_numbers_are_converted_into_one_register():
    found = apply("cvt.rn.f16x2.f32 %0, %1, %2", ("f32", X), ("f32", Y), result="f16x2")
    np.testing.assert_array_equal(found, np.stack([Y, X], 1).astype(np.float16))


def test_an_unknown_instruction_is_named():
    with pytest.raises(PtxError, match=r"line \d+: `frobnicate.b32 .*the instruction is unknown"):
        apply("frobnicate.b32 %0, %1", ("u32", U), result="u32")
