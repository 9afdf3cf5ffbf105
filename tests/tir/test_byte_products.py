"""Products of bytes: which sums have the form of dot-product instructions."""

from __future__ import annotations

import numpy as np
import pytest

from kernelyard.ir import TensorType
from kernelyard.tir.analysis import offset_of
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.builder import PrimFuncBuilder
from kernelyard.tir.byte_products import PER_WORD, byte_of, byte_product, to_unsigned_byte, with_sign_of
from kernelyard.tir.expr import Axis, Expr, Load, cast, index
from kernelyard.tir.interpreter import evaluate

Q, R = Axis("q"), Axis("r")
WORDS = Buffer("w", (8,), "int32")


def data(dtype: str) -> Buffer:
    return Buffer("x", (32,), dtype)


def weight(place: Expr = R) -> Expr:
    return byte_of(WORDS[Q], place, "int8")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_bytes_of_a_word_are_its_memory(dtype: str) -> None:
    b = PrimFuncBuilder()
    words = b.input("w", TensorType((2,), "int32"))
    stored = np.array([0, 255, 127, 128, 1, 2, 254, 3], np.uint8).view(dtype)
    function = b.finish((b.compute((2, PER_WORD), lambda q, r: byte_of(words[q], r, dtype)),))
    (found,) = evaluate(function, [stored.view("<i4")])
    np.testing.assert_array_equal(found.reshape(-1), stored)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_neighbours_in_memory_times_bytes_of_a_word(dtype: str) -> None:
    x = data(dtype)
    byte = to_unsigned_byte(x[Q * PER_WORD + R])
    for body in (byte * weight(), weight() * byte):
        product = byte_product(body, "r")
        assert product is not None
        assert (product.unsigned.buffer, product.signed) == (x, WORDS[Q])
        assert offset_of(x, product.unsigned.indices) == offset_of(x, [Q * PER_WORD])
        assert product.has_sign == (dtype == "int8")


def test_bytes_of_two_words() -> None:
    other = Buffer("x", (8,), "int32")
    product = byte_product(byte_of(other[Q], R, "uint8") * weight(), "r")
    assert product is not None
    assert (product.unsigned, product.has_sign, product.signed) == (other[Q], False, WORDS[Q])


def test_words_that_are_made_of_others_times_neighbours_in_memory() -> None:
    x, halves = data("int8"), WORDS[Q] & 0x0F0F0F0F
    product = byte_product(byte_of(halves, R, "uint8") * cast(x[Q * PER_WORD + R], "int32"), "r")
    assert product is not None
    assert (product.unsigned, product.has_sign) == (halves, False)
    assert isinstance(product.signed, Load)
    assert product.of_memory == (product.signed,)
    assert offset_of(x, product.signed.indices) == offset_of(x, [Q * PER_WORD])


def narrow(x: Expr, number: Expr | None = None) -> Expr:
    """Return a product in 16 bits."""
    return cast(x * (byte_of(WORDS[Q], R, "int8", "int16") if number is None else number), "int32")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_product_in_16_bits_says_that_neighbours_add_up_to_them(dtype: str) -> None:
    product = byte_product(narrow(to_unsigned_byte(data(dtype)[Q * PER_WORD + R], "int16")), "r")
    assert product is not None
    assert (product.fits_16_bits, product.both_signed, product.signs) == (True, False, None)
    assert product.has_sign == (dtype == "int8")


def test_both_factors_may_be_signed_in_16_bits() -> None:
    other = Buffer("x", (8,), "int32")
    product = byte_product(narrow(byte_of(other[Q], R, "int8", "int16")), "r")
    assert product is not None
    assert (product.unsigned, product.signed, product.both_signed) == (other[Q], WORDS[Q], True)


def test_a_factor_takes_the_sign_of_what_the_other_is_the_magnitude_of() -> None:
    x, magnitudes = data("int8"), Buffer("a", (32,), "uint8")
    place = Q * PER_WORD + R
    signed = with_sign_of(x[place], byte_of(WORDS[Q], R, "int8", "int16"))
    product = byte_product(narrow(cast(magnitudes[place], "int16"), signed), "r")
    assert product is not None
    assert (product.signed, product.both_signed, product.has_sign) == (WORDS[Q], False, False)
    assert [word.buffer for word in product.of_memory] == [magnitudes, x]
    assert byte_product(cast(magnitudes[place], "int32") * cast(signed, "int32"), "r") is None, "they may be too large"


@pytest.mark.parametrize(
    "body",
    [
        cast(data("int8")[Q * PER_WORD + R], "int32") * weight(),
        to_unsigned_byte(data("uint8")[Q + R * 8]) * weight(),
        to_unsigned_byte(data("uint8")[Q * PER_WORD + R]) * weight(R + 1),
        to_unsigned_byte(data("uint8")[Q * PER_WORD + R]) * byte_of(WORDS[Q], R, "uint8"),
        to_unsigned_byte(data("uint8")[Q * PER_WORD + R]) * byte_of(WORDS[Q * PER_WORD + R], R, "int8"),
        to_unsigned_byte(data("uint8")[Q * PER_WORD + R]) * byte_of(WORDS[Q], index(0), "int8"),
        to_unsigned_byte(data("uint8")[Q * PER_WORD + R]) + weight(),
    ],
    ids=["both signed", "far apart", "another place", "both unsigned", "other words", "one byte", "a sum"],
)
def test_what_instructions_do_not_multiply(body: Expr) -> None:
    assert byte_product(body, "r") is None
