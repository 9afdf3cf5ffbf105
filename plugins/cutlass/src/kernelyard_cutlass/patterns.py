"""Fusion patterns of CUTLASS: one for each family with any epilogue; the rest is typed attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelyard.plugins.api import (
    Accept,
    Answer,
    Decline,
    FusionPattern,
    Match,
    Pattern,
    attention,
    is_op,
    stacked_attention,
    templates,
    to_first,
    to_last,
    wildcard,
)
from kernelyard_cutlass.attentions import describe_attention, describe_stacked, describe_var_len
from kernelyard_cutlass.convolutions import describe_conv2d
from kernelyard_cutlass.description import (
    ACTIVATIONS,
    COMBINATIONS,
    Describe,
    Description,
    Settings,
    check_arch,
    check_outside,
)
from kernelyard_cutlass.matmuls import describe_int8_matmul, describe_matmul
from kernelyard_cutlass.norms import describe_norm
from kernelyard_cutlass.weights import describe_decode_matmul, match_dequantized_weight


def fusion_patterns(settings: Settings) -> list[FusionPattern]:
    """Return the patterns, of which the first that fits is taken."""
    offered: Sequence[tuple[str, Pattern, Describe]] = (
        ("cutlass.rms_norm", templates.rms_norm(), describe_norm),
        ("cutlass.layer_norm", templates.layer_norm(), describe_norm),
        ("cutlass.attention_var_len", attention(var_len=True), describe_var_len),
        ("cutlass.stacked_attention", _match_stacked(), describe_stacked),
        ("cutlass.attention", attention() | attention(with_bias=True), describe_attention),
        ("cutlass.decode_matmul", with_epilogue(_decode_matmul()), describe_decode_matmul),
        ("cutlass.matmul_int8", with_bias(_int8_matmul()), describe_int8_matmul),
        ("cutlass.matmul", with_epilogue(_matmul()), describe_matmul),
        ("cutlass.conv2d", with_epilogue(_conv2d()), describe_conv2d),
    )
    return [_fusion_pattern(name, pattern, describe, settings) for name, pattern, describe in offered]


def _fusion_pattern(name: str, pattern: Pattern, describe: Describe, settings: Settings) -> FusionPattern:
    def check(match: Match) -> Answer:
        answer = check_arch(settings) or describe(match, settings)
        if isinstance(answer, Decline):
            return answer
        return check_outside(match, answer) or Accept()

    def attributes(match: Match) -> Mapping[str, Any]:
        description = describe(match, settings)
        assert isinstance(description, Description), "attributes are asked for what the check took"
        return description.attrs()

    return FusionPattern(name, pattern, check, attributes)


def with_bias(product: Pattern) -> Pattern:
    """Return the matmul, and what is added to it first."""
    return product.optional(lambda p: is_op("add")(p, wildcard().capture("bias")))


def with_epilogue(product: Pattern) -> Pattern:
    """Return the matmul with a bias, an activation, a residual and another activation, each where it is there.

    It may be made float32 before all that: the accumulators are.
    """
    biased = with_bias(product.optional(lambda p: is_op("astype")(p).has_attr(dtype="float32")))
    activated = biased.optional(lambda p: is_op(*ACTIVATIONS)(p).capture("activation"))

    def combine(p: Pattern) -> Pattern:
        pair = is_op(*COMBINATIONS)(p, wildcard().capture("residual")).capture("combined")
        return pair.optional(lambda q: is_op(*ACTIVATIONS)(q).capture("final"))

    return activated.optional(combine)


def _matmul() -> Pattern:
    return templates.matmul(transposed_rhs=True) | templates.matmul()


def _int8_matmul() -> Pattern:
    """Return a matmul of int8 that are made int32 first; the right side may be transposed before or after that."""

    def wide(x: Pattern) -> Pattern:
        return is_op("astype")(x).has_attr(dtype="int32")

    def transpose(x: Pattern) -> Pattern:
        return is_op("permute_dims")(x).has_attr(axes=templates.swaps_last_two).capture("transposed")

    lhs, rhs = (wildcard().has_dtype("int8").capture(name) for name in ("lhs", "rhs"))
    right = transpose(wide(rhs)) | wide(transpose(rhs)) | wide(rhs)
    return is_op("matmul")(wide(lhs), right).capture("root")


def _decode_matmul() -> Pattern:
    weight = match_dequantized_weight()
    transposed = is_op("permute_dims")(weight).has_attr(axes=templates.swaps_last_two)
    return is_op("matmul")(wildcard().capture("lhs"), (transposed | weight).capture("rhs")).capture("root")


def _conv2d() -> Pattern:
    """Return a convolution as `ConvertLayout` writes it; weights may be stored with their channels last as well."""
    data = is_op("permute_dims")(wildcard().capture("data")).has_attr(axes=to_first(4))
    weight = wildcard().capture("weight")
    transposed = is_op("permute_dims")(weight).has_attr(axes=to_first(4)).capture("transposed")
    convolution = is_op("nn.conv2d")(data, transposed | weight).capture("root")
    return is_op("permute_dims")(convolution).has_attr(axes=to_last(4)).capture("image")


def _match_stacked() -> Pattern:
    kinds = [stacked_attention(start, bias) for start in ("split", "strided_slice") for bias in (False, True)]
    return kinds[0] | kinds[1] | kinds[2] | kinds[3]
