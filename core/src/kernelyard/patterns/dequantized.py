"""Quantized weights: constants that operators dequantize before they are used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from kernelyard.ir.expr import Call, Constant, Expr, Function, Var

Values = Callable[[Expr], Expr]

_DECODING = frozenset(
    (
        *("dequantize", "astype", "multiply", "subtract", "add", "right_shift", "bitwise_and"),
        *("reshape", "permute_dims", "broadcast_to", "strided_slice", "full"),
    )
)
CONVOLUTIONS = frozenset(f"nn.conv{rank}d{kind}" for rank in (1, 2, 3) for kind in ("", "_transpose"))
PRODUCTS = CONVOLUTIONS | {"matmul"}
_MOVING = frozenset(("reshape", "permute_dims", "broadcast_to", "strided_slice", "pad"))
_STORED = {"dequantize": ("int8", "uint8"), "astype": ("float16", "bfloat16")}
_MOST_VALUES = 64  # a dequantization is short; the answer takes no longer in a long chain of other operators


def is_dequantized(expr: Expr, value_of: Values) -> bool:
    """Return True for a value that dequantizing operators compute from constants alone: each run would do it again.

    value_of: what a variable is bound to.

    Example:
        >>> import numpy as np
        >>> from kernelyard.ir import FunctionBuilder
        >>> from kernelyard.ir.visitor import definitions
        >>> b = FunctionBuilder()
        >>> w = b.op("dequantize", np.ones((4, 2), np.int8), np.float32(0.5), np.int8(0))
        >>> values = definitions(b.function(w))
        >>> is_dequantized(w, lambda expr: values.get(expr, expr))
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


def narrow_weights(function: Function, products: frozenset[str] = PRODUCTS) -> set[Var]:
    """Return what a function makes of 8-bit constants by dequantize, or of 16-bit floats by a cast, and products read,
    perhaps in another shape.

    Example:
        >>> import numpy as np
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> w, shift = (b.op("dequantize", np.ones((4, 2), np.int8), np.float32(0.5), np.int8(0)) for _ in range(2))
        >>> function = b.function(b.op("add", b.op("matmul", b.input("x", (3, 4)), w), b.op("sum", shift)))
        >>> narrow_weights(function) == {w}
        True
    """
    read: set[Expr] = set()
    weights: set[Var] = set()
    fixed = find_constant_values(function)  # what is not weights itself is about to be folded
    for binding in reversed(function.bindings):
        value = binding.value
        if not isinstance(value, Call):
            continue
        if value.op_name in products or (value.op_name in _MOVING and binding.var in read):
            read.update(value.args)
        elif value.op_name in _STORED and binding.var in read and _is_narrow(value, fixed):
            weights.add(binding.var)
    return weights


def find_constant_values(function: Function) -> set[Expr]:
    """Return the variables that a function computes of constants alone."""
    made: set[Expr] = set()
    for binding in function.bindings:
        value = binding.value
        if isinstance(value, Call):
            made |= {binding.var} if _are_fixed(value.args, made) else set()
    return made


def _is_narrow(call: Call, fixed: Collection[Expr]) -> bool:
    return _are_fixed(call.args, fixed) and call.args[0].tensor_type.dtype in _STORED[call.op_name]


def _are_fixed(operands: Sequence[Expr], fixed: Collection[Expr]) -> bool:
    return all(isinstance(operand, Constant) or operand in fixed for operand in operands)
