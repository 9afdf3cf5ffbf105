"""Patterns that many backends need, to be put together.

Captures keep their names throughout: "lhs", "rhs" (of matmul), "data", "weight" (of convolutions), "root" (the
operator itself), "bias", "activation", "residual".

Example:
    >>> pattern = with_activation(with_bias(matmul(transposed_rhs=True)), "nn.relu", "nn.gelu")
    >>> from kernelyard.patterns.pattern import captured_names
    >>> captured_names(pattern)
    ('activation', 'root', 'lhs', 'rhs', 'bias')
"""

from __future__ import annotations

from kernelyard.patterns.constructors import is_op, wildcard
from kernelyard.patterns.pattern import Pattern


def matmul(transposed_rhs: bool = False) -> Pattern:
    """`lhs @ rhs`; with `transposed_rhs`, `rhs` is captured before its last two axes are swapped."""
    rhs = wildcard().capture("rhs")
    if transposed_rhs:
        rhs = is_op("permute_dims")(rhs).has_attr(axes=swaps_last_two)
    return is_op("matmul")(wildcard().capture("lhs"), rhs).capture("root")


def convolution(rank: int = 2, transposed: bool = False) -> Pattern:
    """A convolution over `rank` spatial axes, or a transposed one."""
    name = f"nn.conv{rank}d_transpose" if transposed else f"nn.conv{rank}d"
    return is_op(name)(wildcard().capture("data"), wildcard().capture("weight")).capture("root")


def with_bias(pattern: Pattern) -> Pattern:
    """`pattern + bias`; whether the bias has the right shape is for the check to say."""
    return is_op("add")(pattern, wildcard().capture("bias"))


def with_activation(pattern: Pattern, *ops: str) -> Pattern:
    """One of `ops` applied to `pattern`, captured as "activation"."""
    return is_op(*ops)(pattern).capture("activation")


def with_residual(pattern: Pattern, *ops: str) -> Pattern:
    """`pattern` combined with "residual" by one of `ops` (default add), in either order where that is the same."""
    return is_op(*(ops or ("add",)))(pattern, wildcard().capture("residual"))


def swaps_last_two(axes: tuple[int, ...]) -> bool:
    """True for a permutation that exchanges the last two axes and nothing else.

    Example:
        >>> swaps_last_two((0, 2, 1)), swaps_last_two((2, 1, 0))
        (True, False)
    """
    rank = len(axes)
    return rank >= 2 and tuple(axes) == (*range(rank - 2), rank - 1, rank - 2)
