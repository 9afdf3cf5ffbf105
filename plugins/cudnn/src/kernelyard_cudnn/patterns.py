"""What is offloaded to cuDNN: convolutions with what follows them, attention, and norms.

A convolution reads `[permute] conv [permute | stage]*`: permutations are strides to cuDNN, and stages its epilogue.
"""

from __future__ import annotations

from functools import partial

from kernelyard.patterns import FusionPattern, Pattern, is_const, is_op, wildcard
from kernelyard.patterns.attention_templates import stacked_attention
from kernelyard.patterns.templates import layer_norm, rms_norm
from kernelyard_cudnn.checks import Checks
from kernelyard_cudnn.reading import ATTENTION, BINARY, CONVOLUTIONS, PERMUTE, TRANSPOSED, UNARY

MAX_STAGES = 6  # permutations count


def stage(previous: Pattern) -> Pattern:
    """An activation, the result with another operand, or the result in another order."""
    return is_op(*UNARY)(previous) | is_op(*BINARY)(previous, wildcard()) | is_op(PERMUTE)(previous) | _right(previous)


def _right(previous: Pattern) -> Pattern:
    return is_op("maximum", "minimum")(wildcard(), previous)


def _read(op_names: tuple[str, ...]) -> Pattern:
    """A convolution that reads its operands as they are, or permuted."""
    x, w = (is_op(PERMUTE)(wildcard()) | wildcard() for _ in range(2))
    return is_op(*op_names)(x, w)


def convolution(*op_names: str) -> Pattern:
    """A convolution with as many stages as there are."""
    pattern = _read(op_names)
    for _ in range(MAX_STAGES):
        pattern = pattern.optional(stage)
    return pattern


def attention() -> Pattern:
    """Attention of operands as they are, or permuted; the result may be permuted too."""
    operands = [is_op(PERMUTE)(wildcard()) | wildcard() for _ in range(3)]
    root = is_op(ATTENTION[0])(*operands) | is_op(ATTENTION[1])(*operands, wildcard())
    return root.optional(lambda result: is_op(PERMUTE)(result))


def padded_attention() -> Pattern:
    """Attention whose bias hides the keys behind each example's length."""
    operands = [is_op(PERMUTE)(wildcard()) | wildcard() for _ in range(3)]
    mask = is_op("where")(is_op("less")(is_const(), wildcard()), is_const(), is_const())
    root = is_op(ATTENTION[1])(*operands, mask)
    return root.optional(lambda result: is_op(PERMUTE)(result))


def fusion_patterns(checks: Checks) -> list[FusionPattern]:
    """Every pattern, most wanted first."""
    patterns = [
        FusionPattern(f"cudnn.{op.removeprefix('nn.')}", convolution(op), checks.convolution)
        for op in (*CONVOLUTIONS, *TRANSPOSED)
    ]
    for layout in ("BS3NH", "SBN3H"):
        make = partial(stacked_attention, layout=layout)
        ways = [make(start, with_bias) for start in ("split", "strided_slice") for with_bias in (False, True)]
        either = ways[0] | ways[1] | ways[2] | ways[3]
        patterns.append(FusionPattern(f"cudnn.attention.{layout}", either, checks.attention))
    return [
        *patterns,
        FusionPattern("cudnn.padded_attention", padded_attention(), checks.attention),
        FusionPattern("cudnn.attention", attention(), checks.attention),
        FusionPattern("cudnn.layer_norm", layer_norm(), checks.norm),
        FusionPattern("cudnn.rms_norm", rms_norm(), checks.norm),
    ]
