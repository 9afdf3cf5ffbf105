"""What is offloaded to oneDNN: one pattern per kind of primitive, each followed by up to `MAX_STAGES` post-ops.

A group reads `anchor [stage]*`: matmul [+ bias] [activation] [+ residual] is one pattern, not one per combination.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.patterns import FusionPattern, Pattern, is_const, is_op, wildcard
from kernelyard.patterns.templates import swaps_last_two
from kernelyard_dnnl import checks
from kernelyard_dnnl.composite import CONVOLUTIONS, DECONVOLUTIONS
from kernelyard_dnnl.nodes import AVG_POOLS, MAX_POOLS, REDUCTIONS
from kernelyard_dnnl.post_ops import BINARY, REVERSED, UNARY, scalar_of

MAX_STAGES = 5


def activation(previous: Pattern) -> Pattern:
    """A function of `previous` alone."""
    exponent = is_const().where(lambda constant: scalar_of(constant) is not None)
    return is_op(*UNARY)(previous) | is_op("power")(previous, exponent)


def stage(previous: Pattern) -> Pattern:
    """An activation of `previous`, or `previous` combined with another tensor, in either order."""
    combined = is_op(*BINARY)(previous, wildcard())
    reversed_ = is_op(*REVERSED)(wildcard(), previous)
    return activation(previous) | combined | reversed_


def cast(previous: Pattern) -> Pattern:
    """`previous` in another dtype."""
    return is_op("astype")(previous)


def stage_or_cast(previous: Pattern) -> Pattern:
    """A stage, or a cast: sums are float32 until they are stored, so that both cost nothing."""
    return stage(previous) | cast(previous)


def with_stages(anchor: Pattern, count: int = MAX_STAGES, one: Callable[[Pattern], Pattern] = stage) -> Pattern:
    """`anchor` with up to `count` stages, as many as there are."""
    pattern = anchor
    for _ in range(count):
        pattern = pattern.optional(one)
    return pattern


def with_casts(anchor: Pattern) -> Pattern:
    """`anchor` with its stages, between which and after which it may be cast."""
    return with_stages(anchor, one=stage_or_cast)


def _two(*names: str) -> Pattern:
    return is_op(*names)(wildcard(), wildcard())


def _transposed_matmul() -> Pattern:
    """A product that reads one side or both with the last two axes swapped."""
    left, right = (is_op("permute_dims")(wildcard()).has_attr(axes=swaps_last_two) for _ in range(2))
    return is_op("matmul")(left | wildcard(), right) | is_op("matmul")(left, wildcard())


def _padded(convolution: str) -> Pattern:
    return is_op(convolution)(is_op("pad")(wildcard()), wildcard())


def _batch_norm() -> Pattern:
    return is_op("nn.batch_norm")(*(wildcard() for _ in range(5)))


def _elementwise() -> Pattern:
    """An activation or arithmetic by itself: one pattern, so that the longest chain is found."""
    return activation(wildcard()) | _two(*BINARY)


def _label(op: str) -> str:
    return op.removeprefix("nn.")


def fusion_patterns() -> list[FusionPattern]:
    """Every pattern, most wanted first: what computes most comes before what merely follows it."""
    patterns = [
        FusionPattern(f"dnnl.padded_{_label(op)}", with_casts(_padded(op)), checks.padded_convolution)
        for op in CONVOLUTIONS
    ]
    patterns += [
        FusionPattern(f"dnnl.{_label(op)}", with_casts(_two(op)), checks.convolution)
        for op in (*CONVOLUTIONS, *DECONVOLUTIONS)
    ]
    patterns += [
        FusionPattern("dnnl.transposed_matmul", with_casts(_transposed_matmul()), checks.matmul),
        FusionPattern("dnnl.matmul", with_casts(_two("matmul")), checks.matmul),
        FusionPattern("dnnl.softmax", is_op("nn.softmax", "nn.log_softmax")(wildcard()).optional(cast), checks.softmax),
        FusionPattern(
            "dnnl.layer_norm", is_op("nn.layer_norm")(*(wildcard() for _ in range(3))).optional(cast), checks.layer_norm
        ),
        FusionPattern("dnnl.batch_norm", with_stages(_batch_norm()), checks.batch_norm),
        FusionPattern("dnnl.lrn", is_op("nn.lrn")(wildcard()), checks.lrn),
        FusionPattern("dnnl.pool", with_stages(is_op(*MAX_POOLS, *AVG_POOLS)(wildcard())), checks.pool),
        FusionPattern("dnnl.reduce", is_op(*REDUCTIONS)(wildcard()), checks.reduce),
        FusionPattern("dnnl.resample", with_stages(is_op("image.resize")(wildcard())), checks.resample),
        FusionPattern("dnnl.concat", is_op("concat")(wildcard(), wildcard(), varargs=True), checks.concat),
        FusionPattern("dnnl.elementwise", with_stages(_elementwise()), checks.elementwise),
        FusionPattern("dnnl.cast", is_op("astype")(wildcard()), checks.cast),
        FusionPattern("dnnl.reorder", is_op("permute_dims")(wildcard()), checks.reorder),
        FusionPattern("dnnl.reshape", is_op("reshape")(wildcard()), checks.view),
        FusionPattern("dnnl.slice", is_op("strided_slice")(wildcard()), checks.slices),
    ]
    return patterns
