"""Fusion patterns of oneDNN: one group per kind of primitive, each followed by up to `MAX_STAGES` post-ops.

A group reads `anchor [stage]*`: matmul [+ bias] [activation] [+ residual] is one pattern, not one per combination.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from kernelyard.plugins.api import FusionPattern, Pattern, is_const, is_op, templates, wildcard
from kernelyard_dnnl.checks import check
from kernelyard_dnnl.post_ops import BINARY, REVERSED, UNARY
from kernelyard_dnnl.primitive_kind import INTEGERS, Follows, PrimitiveKind
from kernelyard_dnnl.primitives import all_kinds
from kernelyard_dnnl.stages import scalar_of

MAX_STAGES = 5
WIDE = ("int16", "uint16")


def activation(previous: Pattern) -> Pattern:
    """Return a function of `previous` alone."""
    exponent = is_const().where(lambda constant: scalar_of(constant) is not None)
    return is_op(*UNARY)(previous) | is_op("power")(previous, exponent)


def stage(previous: Pattern) -> Pattern:
    """Return an activation of `previous`, or `previous` combined with another tensor, in either order.

    The slopes of a prelu are constants.
    """
    combined = is_op(*BINARY)(previous, wildcard())
    reversed_ = is_op(*REVERSED)(wildcard(), previous)
    return activation(previous) | combined | reversed_ | is_op("nn.prelu")(previous, is_const())


def stage_or_wide_store(previous: Pattern) -> Pattern:
    """Return a stage, or `previous` as 16 bits hold it: float32, in which post-ops compute, holds them exactly."""
    return stage(previous) | match_stored(previous, WIDE)


def cast(previous: Pattern) -> Pattern:
    """Match `previous` converted to another dtype."""
    return is_op("astype")(previous)


def stage_or_cast(previous: Pattern) -> Pattern:
    """Return a stage, or a cast: sums are float32 until they are stored, so that both cost nothing."""
    return stage_or_wide_store(previous) | cast(previous)


def match_stored(previous: Pattern, dtypes: Collection[str] = INTEGERS) -> Pattern:
    """Match `previous` quantized and dequantized, by one constant scale and zero point each."""

    def one() -> Pattern:
        return is_const().where(lambda constant: scalar_of(constant) is not None)

    quantized = is_op("quantize")(previous, one(), one()).where(lambda codes: codes.tensor_type.dtype in dtypes)
    return is_op("dequantize")(quantized, one(), one())


def with_stages(anchor: Pattern, one: Callable[[Pattern], Pattern] = stage) -> Pattern:
    """Match `anchor` followed by as many stages as possible, at most `MAX_STAGES`."""
    for _ in range(MAX_STAGES):
        anchor = anchor.optional(one)
    return anchor


def match_decoded() -> Pattern:
    """Match what dequantize makes of stored values."""
    return is_op("dequantize")(wildcard(), wildcard(), wildcard())


def match_encoded(previous: Pattern) -> Pattern:
    """Match `previous` quantized."""
    return is_op("quantize")(previous, is_const(), is_const())


def match_stored_again(previous: Pattern) -> Pattern:
    """Match `previous` quantized, what is then computed for each channel, as norms and slopes are, and the result
    quantized again: integers are rounded in registers."""
    of_channels = is_op("add", "multiply", "nn.prelu")(match_stored(previous), is_const())
    return is_op("quantize")(with_stages(of_channels), is_const(), is_const())


def stage_of_integers(previous: Pattern) -> Pattern:
    """Return a stage whose other operand may be dequantized."""
    return is_op("add", "subtract")(previous, match_decoded()) | stage(previous)


def of_integers(kind: PrimitiveKind) -> Pattern:
    """Return a call of one of the kind's operators on operands that are dequantized, and all that is computed before
    the result is stored. The second operand of arithmetic may be a constant, as those of norms are."""
    sides = [match_decoded() for _ in kind.operands]
    if kind.bias_axis is None and len(sides) > 1:
        sides[-1] |= is_const().where(lambda constant: scalar_of(constant) is None)
    if kind.reader == "permute_dims":
        sides[-1] |= READERS[kind.reader].pattern(match_decoded())
    anchor = is_op(*kind.on_integers)(*sides)
    if kind.follows is not Follows.NOTHING:
        anchor = with_stages(anchor, stage_of_integers if kind.bias_axis is not None else stage)
    if kind.bias_axis is not None:
        return anchor.optional(lambda previous: match_stored_again(previous) | match_encoded(previous))
    return anchor.optional(match_encoded)


FOLLOWING: Mapping[Follows, Callable[[Pattern], Pattern]] = {
    Follows.NOTHING: lambda anchor: anchor,
    Follows.CAST: lambda anchor: anchor.optional(cast),
    Follows.POST_OPS: lambda anchor: with_stages(anchor, stage_or_wide_store),
    Follows.POST_OPS_AND_CASTS: lambda anchor: with_stages(anchor, stage_or_cast),
}


class Reader(NamedTuple):
    """A way of reading operands that a primitive does itself: what patterns with it are called, and its own pattern."""

    name: str
    pattern: Callable[[Pattern], Pattern]
    operands: int


READERS: Mapping[str, Reader] = {
    "pad": Reader("padded", lambda x: is_op("pad")(x), 1),
    "permute_dims": Reader("transposed", lambda x: is_op("permute_dims")(x).has_attr(axes=templates.swaps_last_two), 2),
}


def _read_through(op: str, reader: Reader) -> Pattern:
    """Return a call of two operands, of which one at least is read that way."""
    first = reader.pattern(wildcard())
    one = is_op(op)(first, wildcard())
    return one if reader.operands == 1 else is_op(op)(first | wildcard(), reader.pattern(wildcard())) | one


def _match_call(kind: PrimitiveKind, *ops: str) -> Pattern:
    """Match a call of one of the operators with the kind's operands."""
    count = len(kind.operands) or 2  # two, where there may be any number
    return is_op(*ops)(*(wildcard() for _ in range(count)), varargs=not kind.operands)


def names_of(kind: PrimitiveKind) -> list[str]:
    """Return the names of a kind's patterns."""
    return [f"dnnl.{name}" for name, _ in (*_of_integers(kind), *_anchors(kind))]


def _anchors(kind: PrimitiveKind) -> Iterator[tuple[str, Pattern]]:
    """Yield the patterns of a kind by name, without what follows."""
    if kind.reader:
        reader = READERS[kind.reader]
        yield from ((f"{reader.name}_{op.removeprefix('nn.')}", _read_through(op, reader)) for op in kind.ops)
    if kind.anchor is not None:
        yield kind.pattern, kind.anchor()
    elif kind.pattern:
        alike = [op for other in all_kinds() if other.pattern == kind.pattern for op in other.ops]
        yield kind.pattern, _match_call(kind, *alike)
    else:
        yield from ((op.removeprefix("nn."), _match_call(kind, op)) for op in kind.ops)


def _of_integers(kind: PrimitiveKind) -> Iterator[tuple[str, Pattern]]:
    """Yield the patterns of a kind on integers by name."""
    if kind.pattern and kind.on_integers:
        yield f"quantized_{kind.node}", of_integers(kind)
        return
    for op in kind.on_integers:
        yield f"quantized_{op.removeprefix('nn.')}", of_integers(kind._replace(on_integers=(op,)))


@cache
def fusion_patterns() -> tuple[FusionPattern, ...]:
    """Return every pattern, those on integers first, else in the order of `primitives.MODULES`.

    Made once per process, since patterns never change.
    """
    found = {
        name: FusionPattern(f"dnnl.{name}", pattern, check)
        for kind in all_kinds()
        for name, pattern in _of_integers(kind)
    }
    for kind in all_kinds():
        for name, anchor in _anchors(kind):
            found.setdefault(name, FusionPattern(f"dnnl.{name}", FOLLOWING[kind.follows](anchor), check))
    return tuple(found.values())
