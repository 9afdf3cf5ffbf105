"""Fusion patterns of cuBLASLt: a matmul and its epilogue, the longest chain first.

Operands are read through casts that widen them and through transpositions. Names say what a pattern is; what a match is
made of is read from the match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product as combinations

from kernelyard.plugins.api import FusionPattern, Pattern, is_const, is_op, templates, wildcard
from kernelyard_cublas.checks import Check, Checks, alpha_of
from kernelyard_cublas.reading import read_match

GELUS = ("nn.gelu", "nn.gelu_tanh")


def _cast(operand: Pattern) -> Pattern:
    return is_op("astype")(operand)


def _match_transposed(operand: Pattern) -> Pattern:
    return is_op("permute_dims")(operand).has_attr(axes=templates.swaps_last_two)


def _operand(name: str, transposed: bool) -> Pattern:
    """Return an operand that is read with its last two axes exchanged, or as it lies.

    Perhaps wider than it is stored.
    """
    stored = wildcard().capture(name)
    if transposed:
        return _cast(_match_transposed(stored)) | _match_transposed(_cast(stored)) | _match_transposed(stored)
    return _cast(stored) | stored


def product(transposed_rhs: bool) -> Pattern:
    """Match `lhs @ rhs`, captured as "root"."""
    lhs = _operand("lhs", transposed=True) | _operand("lhs", transposed=False)
    return is_op("matmul")(lhs, _operand("rhs", transposed_rhs)).capture("root")


def match_scaled(pattern: Pattern) -> Pattern:
    """Match `pattern`, optionally multiplied or divided by the constant "scale"."""
    scale = is_const().capture("scale")
    return pattern.optional(
        lambda total: is_op("multiply")(total, scale) | is_op("divide")(total, scale).capture("quotient")
    )


def match_dequantized(pattern: Pattern) -> Pattern:
    """Match `pattern` dequantized by the constants "scale" and "zero_point"."""
    return is_op("dequantize")(pattern, is_const().capture("scale"), is_const().capture("zero_point"))


def match_multiplied(pattern: Pattern) -> Pattern:
    """Match `pattern` times "scale_a" times "scale_b", optionally converted."""
    scale = is_op("multiply")(*(wildcard().has_shape(1).capture(name) for name in ("scale_a", "scale_b")))
    return is_op("multiply")(pattern, scale).optional(_cast)


def fusion_patterns(checks: Checks) -> list[FusionPattern]:
    """Return every pattern, most wanted first."""
    return [
        FusionPattern(f"cublas.{name}", pattern, check, _attributes)
        for name, pattern, check in _iterate_patterns(checks)
    ]


def _attributes(match: object) -> dict[str, object]:
    return {"product": {**read_match(match).attributes(), "alpha": alpha_of(match)}}  # pyright: ignore


def _iterate_patterns(checks: Checks) -> Iterator[tuple[str, Pattern, Check]]:
    for transposed in (True, False):
        name = "matmul_transposed" if transposed else "matmul"
        yield f"{name}_multiply", match_multiplied(product(transposed)), checks.multiply
        yield f"{name}_dequantize", match_dequantized(product(transposed)), checks.dequantize
    for activation, residual, bias, transposed in combinations(ACTIVATED, RESIDUAL, BIASED, (True, False)):
        name, pattern = "matmul_transposed" if transposed else "matmul", match_scaled(product(transposed))
        for suffix, wrap in (bias, residual, activation):
            name, pattern = name + suffix, wrap(pattern)
        yield name, pattern, checks.product


Stage = tuple[str, Callable[[Pattern], Pattern]]


def _identity(pattern: Pattern) -> Pattern:
    return pattern


NONE: Stage = ("", _identity)
BIASED: tuple[Stage, ...] = (("_bias", templates.with_bias), NONE)
RESIDUAL: tuple[Stage, ...] = (("_residual", templates.with_residual), NONE)
ACTIVATED: tuple[Stage, ...] = (
    ("_relu", lambda pattern: templates.with_activation(pattern, "nn.relu")),
    ("_gelu", lambda pattern: templates.with_activation(pattern, *GELUS)),
    NONE,
)
