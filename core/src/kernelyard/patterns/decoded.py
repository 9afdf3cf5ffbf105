"""Quantized weights: constants that operators dequantize before they are used."""

from __future__ import annotations

from collections.abc import Callable

from kernelyard.ir.expr import Call, Constant, Expr

Values = Callable[[Expr], Expr]

_DECODING = frozenset(
    (
        *("dequantize", "astype", "multiply", "subtract", "add", "right_shift", "bitwise_and"),
        *("reshape", "permute_dims", "broadcast_to", "strided_slice", "full"),
    )
)
_MOST_VALUES = 64  # a dequantization is short; the answer takes no longer in a long chain of other operators


def is_decoded(expr: Expr, value_of: Values) -> bool:
    """Return True for a value that dequantizing operators compute from constants alone: each run would do it again.

    value_of: what a variable is bound to.

    Example:
        >>> import numpy as np
        >>> from kernelyard.ir import FunctionBuilder
        >>> from kernelyard.ir.visitor import definitions
        >>> b = FunctionBuilder()
        >>> w = b.op("dequantize", np.ones((4, 2), np.int8), np.float32(0.5), np.int8(0))
        >>> values = definitions(b.function(w))
        >>> is_decoded(w, lambda expr: values.get(expr, expr))
        True
    """
    value = value_of(expr)
    stack, visited = [value], 0
    while stack and visited < _MOST_VALUES:
        visited += 1
        part = value_of(stack.pop())
        if isinstance(part, Call) and part.op_name in _DECODING:
            stack += part.args
        elif not isinstance(part, Constant):
            return False
    return isinstance(value, Call) and not stack
