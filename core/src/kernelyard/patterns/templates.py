"""Patterns that many backends need, to be put together.

Captures keep their names throughout: "lhs", "rhs" (of matmul), "data", "weight" (of convolutions), "root" (the
operator itself), "bias", "activation", "residual", "scale", "zero_point". Those of attention are in
`kernelyard.patterns.attention_templates`.

Example:
    >>> pattern = with_activation(with_bias(matmul(transposed_rhs=True)), "nn.relu", "nn.gelu")
    >>> from kernelyard.patterns.language.pattern_parts import list_captures
    >>> list_captures(pattern)
    ('activation', 'root', 'lhs', 'rhs', 'bias')
"""

from __future__ import annotations

from kernelyard.patterns.language.constructors import is_const, is_op, wildcard
from kernelyard.patterns.language.pattern import Pattern

SWAP_HEADS = (0, 2, 1, 3)  # (B, S, N, H) <-> (B, N, S, H), of attention


def matmul(transposed_rhs: bool = False) -> Pattern:
    """Match `lhs @ rhs`; with `transposed_rhs`, `rhs` is captured before its last two axes are swapped."""
    rhs = wildcard().capture("rhs")
    if transposed_rhs:
        rhs = is_op("permute_dims")(rhs).has_attr(axes=swaps_last_two)
    return is_op("matmul")(wildcard().capture("lhs"), rhs).capture("root")


def convolution(rank: int = 2, transposed: bool = False) -> Pattern:
    """Return a convolution over `rank` spatial axes, or a transposed one."""
    name = f"nn.conv{rank}d_transpose" if transposed else f"nn.conv{rank}d"
    return is_op(name)(wildcard().capture("data"), wildcard().capture("weight")).capture("root")


def with_bias(pattern: Pattern, allow_reshape: bool = False) -> Pattern:
    """Match `pattern + bias`; the check has to test the shape of the bias.

    allow_reshape: a reshape of the bias may be in between, and is then part of the group.
    """
    bias = wildcard().capture("bias")
    return is_op("add")(pattern, (is_op("reshape")(bias) | bias) if allow_reshape else bias)


def with_activation(pattern: Pattern, *ops: str) -> Pattern:
    """Return one of `ops` applied to `pattern`, captured as "activation"."""
    return is_op(*ops)(pattern).capture("activation")


def with_residual(pattern: Pattern, *ops: str) -> Pattern:
    """Match `pattern` combined with "residual" by one of `ops` (default add), in either order if it is commutative."""
    return is_op(*(ops or ("add",)))(pattern, wildcard().capture("residual"))


def residual_block(pattern: Pattern, op: str = "add", activation: str | None = None) -> Pattern:
    """Match `pattern` combined with "residual" by `op`, whichever comes first, and then activated."""
    residual = wildcard().capture("residual")
    combined = is_op(op)(pattern, residual) | is_op(op)(residual, pattern)
    return with_activation(combined, activation) if activation else combined


def layer_norm() -> Pattern:
    """Match normalisation over some axes: "data", "gamma", "beta"."""
    data, gamma, beta = (wildcard().capture(name) for name in ("data", "gamma", "beta"))
    return is_op("nn.layer_norm")(data, gamma, beta).capture("root")


def rms_norm() -> Pattern:
    """Match normalisation by the root of the mean square: "data", "weight"."""
    return is_op("nn.rms_norm")(wildcard().capture("data"), wildcard().capture("weight")).capture("root")


def matmul_dequantize(transposed_rhs: bool = False) -> Pattern:
    """Return a product of integers restored to floats by a constant "scale" and "zero_point"."""
    scale, zero_point = is_const().capture("scale"), is_const().capture("zero_point")
    return is_op("dequantize")(matmul(transposed_rhs), scale, zero_point)


def matmul_multiply(transposed_rhs: bool = False) -> Pattern:
    """Return a product scaled by two numbers, "scale_a" and "scale_b" of shape (1,), and converted (fp8)."""
    scales = [wildcard().has_shape(1).capture(name) for name in ("scale_a", "scale_b")]
    scale = is_op("multiply")(*scales)
    return is_op("astype")(is_op("multiply")(matmul(transposed_rhs), scale))


def decode_matmul(transposed_rhs: bool = False, decode: Pattern | None = None) -> Pattern:
    """Return a matmul whose weight is quantized, and dequantized first.

    decode: what dequantizes it, default dequantize of "encoded" by "scale" and "zero_point"; for a loop-level function
    write `is_call_tir("decode", [...])`.
    """
    if decode is None:
        decode = is_op("dequantize")(*(wildcard().capture(name) for name in ("encoded", "scale", "zero_point")))
    rhs = is_op("permute_dims")(decode).has_attr(axes=swaps_last_two) if transposed_rhs else decode
    return is_op("matmul")(wildcard().capture("lhs"), rhs.capture("rhs")).capture("root")


def swaps_last_two(axes: tuple[int, ...]) -> bool:
    """Return True for a permutation that exchanges the last two axes and nothing else.

    Example:
        >>> swaps_last_two((0, 2, 1)), swaps_last_two((2, 1, 0))
        (True, False)
    """
    rank = len(axes)
    return rank >= 2 and tuple(axes) == (*range(rank - 2), rank - 1, rank - 2)
