"""Fusion patterns of cuDNN: convolutions and their epilogues, attention, and norms.

A convolution reads `[permute] conv [permute | stage]*`: permutations are strides to cuDNN, and stages its epilogue.
"""

from __future__ import annotations

from kernelyard.plugins.api import FusionPattern, Pattern, is_const, is_op, templates, wildcard
from kernelyard_cudnn.checks import Checks
from kernelyard_cudnn.reading import ATTENTION, BINARY, CONVOLUTIONS, PERMUTE, TRANSPOSED, UNARY

MAX_STAGES = 6  # permutations count
STACKED = ("BS3NH", "SBN3H")


def stage(previous: Pattern) -> Pattern:
    """Return an activation, the result with another operand, or the result in another order."""
    return is_op(*UNARY)(previous) | is_op(*BINARY)(previous, wildcard()) | is_op(PERMUTE)(previous) | _right(previous)


def _right(previous: Pattern) -> Pattern:
    return is_op("maximum", "minimum")(wildcard(), previous)


def _read(op_names: tuple[str, ...]) -> Pattern:
    """Return a convolution that reads its operands as they are, or permuted."""
    x, w = (is_op(PERMUTE)(wildcard()) | wildcard() for _ in range(2))
    return is_op(*op_names)(x, w)


def convolution(*op_names: str) -> Pattern:
    """Return a convolution with as many stages as there are."""
    pattern = _read(op_names)
    for _ in range(MAX_STAGES):
        pattern = pattern.optional(stage)
    return pattern


def attention() -> Pattern:
    """Match attention of operands as they are, or permuted; the result may be permuted too."""
    operands = [is_op(PERMUTE)(wildcard()) | wildcard() for _ in range(3)]
    root = is_op(ATTENTION[0])(*operands) | is_op(ATTENTION[1])(*operands, wildcard())
    return root.optional(lambda result: is_op(PERMUTE)(result))


def match_stacked_attention(layout: str) -> Pattern:
    """Match attention of queries, keys and values that are pieces of one tensor, of any widths: grouped queries too."""
    split, stacked = is_op("split")(wildcard()), wildcard()
    pieces = [split[None] for _ in range(3)], [is_op("strided_slice")(stacked) for _ in range(3)]
    lay_out = is_op("reshape" if layout == "BS3NH" else PERMUTE)
    roots: list[Pattern] = []
    for three in pieces:
        operands = [lay_out(piece) for piece in three]
        roots.append(is_op(ATTENTION[0])(*operands) | is_op(ATTENTION[1])(*operands, wildcard()))
    root = roots[0] | roots[1]
    return root if layout == "BS3NH" else is_op(PERMUTE)(root)


def match_padded_attention() -> Pattern:
    """Match attention whose bias masks the keys behind each example's length."""
    operands = [is_op(PERMUTE)(wildcard()) | wildcard() for _ in range(3)]
    mask = is_op("where")(is_op("less")(is_const(), wildcard()), is_const(), is_const())
    root = is_op(ATTENTION[1])(*operands, mask)
    return root.optional(lambda result: is_op(PERMUTE)(result))


def fusion_patterns(checks: Checks) -> list[FusionPattern]:
    """Return every pattern, most wanted first."""
    patterns = [
        FusionPattern(f"cudnn.{op.removeprefix('nn.')}", convolution(op), checks.convolution)
        for op in (*CONVOLUTIONS, *TRANSPOSED)
    ]
    patterns += [
        FusionPattern(f"cudnn.attention.{layout}", match_stacked_attention(layout), checks.attention)
        for layout in STACKED
    ]
    return [
        *patterns,
        FusionPattern("cudnn.padded_attention", match_padded_attention(), checks.attention),
        FusionPattern("cudnn.attention", attention(), checks.attention),
        FusionPattern("cudnn.layer_norm", templates.layer_norm(), checks.norm),
        FusionPattern("cudnn.rms_norm", templates.rms_norm(), checks.norm),
    ]
