"""Operators of one element at a time: arithmetic, comparison, activations. Operands are broadcast as by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kernelyard.ir.op import get_op
from kernelyard.nn.tensor import Operand, Tensor, emit, to_expr

__all__ = [
    "abs",
    "add",
    "astype",
    "ceil",
    "clip",
    "cos",
    "divide",
    "equal",
    "erf",
    "exp",
    "floor",
    "gelu",
    "greater",
    "greater_equal",
    "leaky_relu",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "power",
    "prelu",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "where",
]


F = TypeVar("F", bound=Callable[..., Tensor])


def _unary(name: str) -> Callable[[Operand], Tensor]:
    def function(x: Operand) -> Tensor:
        return emit(name, x)

    return _named(function, name)


def _binary(name: str) -> Callable[[Operand, Operand], Tensor]:
    def function(a: Operand, b: Operand) -> Tensor:
        return emit(name, a, b)

    return _named(function, name)


def _named(function: F, name: str) -> F:
    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    function.__doc__ = f"{get_op(name).summary}."
    return function


abs = _unary("abs")  # noqa: A001  the operators have the field's names
ceil = _unary("ceil")
cos = _unary("cos")
erf = _unary("erf")
exp = _unary("exp")
floor = _unary("floor")
log = _unary("log")
logical_not = _unary("logical_not")
negative = _unary("negative")
relu = _unary("nn.relu")
round = _unary("round")  # noqa: A001
rsqrt = _unary("rsqrt")
sigmoid = _unary("sigmoid")
silu = _unary("nn.silu")
sin = _unary("sin")
softplus = _unary("nn.softplus")
sqrt = _unary("sqrt")
square = _unary("square")
tan = _unary("tan")
tanh = _unary("tanh")

add = _binary("add")
divide = _binary("divide")
equal = _binary("equal")
greater = _binary("greater")
greater_equal = _binary("greater_equal")
less = _binary("less")
less_equal = _binary("less_equal")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
maximum = _binary("maximum")
minimum = _binary("minimum")
multiply = _binary("multiply")
not_equal = _binary("not_equal")
power = _binary("power")
subtract = _binary("subtract")


def astype(x: Tensor, dtype: str) -> Tensor:
    """The values in another dtype."""
    return emit("astype", x, dtype=dtype)


def clip(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:  # noqa: A002  as the attributes
    """The values limited to [min, max]; None is no limit."""
    return emit("clip", x, min=min, max=max)


def relu6(x: Tensor) -> Tensor:
    """The values limited to [0, 6]."""
    return clip(x, 0.0, 6.0)


def leaky_relu(x: Tensor, alpha: float = 0.01) -> Tensor:
    """x where it is positive, else alpha * x."""
    return emit("nn.leaky_relu", x, alpha=alpha)


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """The Gaussian error linear unit; `approximate` takes the form with tanh."""
    return emit("nn.gelu_tanh" if approximate else "nn.gelu", x)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """x where it is positive, else slope * x; `slope` is a number for each channel (axis 1), or one."""
    if slope.ndim == 1 and x.ndim > 2:
        slope = slope.reshape(*slope.shape, *[1] * (x.ndim - 2))
    return emit("nn.prelu", x, slope)


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """x where the condition holds, else y."""
    known = next((each for each in (x, y) if isinstance(each, Tensor)), None)
    x, y = (_like(each, known) for each in (x, y))
    return emit("where", condition, x, y)


def _like(value: Operand, other: Tensor | None) -> Operand:
    """A number in the dtype of a tensor, not in that of the condition beside it."""
    return value if isinstance(value, Tensor) else Tensor(to_expr(value, "float32" if other is None else other.dtype))
