"""Operators of one element at a time: arithmetic, comparison, activations. Operands are broadcast as by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kernelyard.nn.tensor import Operand, Tensor, emit, to_expr
from kernelyard.plugins.api import get_op

__all__ = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atanh",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "celu",
    "clip",
    "cos",
    "cosh",
    "divide",
    "elu",
    "equal",
    "erf",
    "exp",
    "expm1",
    "floor",
    "fmod",
    "gelu",
    "greater",
    "greater_equal",
    "hard_sigmoid",
    "hard_swish",
    "isfinite",
    "isinf",
    "isnan",
    "leaky_relu",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log1p",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "power",
    "prelu",
    "reciprocal",
    "relu",
    "relu6",
    "right_shift",
    "round",
    "rsqrt",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "where",
]


F = TypeVar("F", bound=Callable[..., Tensor])


def _unary(name: str) -> Callable[[Operand], Tensor]:
    def function(x: Operand) -> Tensor:
        return emit(name, x)

    return _rename(function, name)


def _binary(name: str) -> Callable[[Operand, Operand], Tensor]:
    def function(a: Operand, b: Operand) -> Tensor:
        return emit(name, a, b)

    return _rename(function, name)


def _rename(function: F, name: str) -> F:
    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    function.__doc__ = f"{get_op(name).summary}."
    return function


abs = _unary("abs")  # noqa: A001  the operators have the field's names
acos = _unary("acos")
acosh = _unary("acosh")
asin = _unary("asin")
asinh = _unary("asinh")
atan = _unary("atan")
atanh = _unary("atanh")
bitwise_not = _unary("bitwise_not")
ceil = _unary("ceil")
cos = _unary("cos")
cosh = _unary("cosh")
erf = _unary("erf")
exp = _unary("exp")
expm1 = _unary("expm1")
floor = _unary("floor")
isfinite = _unary("isfinite")
isinf = _unary("isinf")
isnan = _unary("isnan")
log = _unary("log")
log1p = _unary("log1p")
logical_not = _unary("logical_not")
mish = _unary("nn.mish")
negative = _unary("negative")
reciprocal = _unary("reciprocal")
relu = _unary("nn.relu")
round = _unary("round")  # noqa: A001
rsqrt = _unary("rsqrt")
sigmoid = _unary("sigmoid")
sign = _unary("sign")
silu = _unary("nn.silu")
sin = _unary("sin")
sinh = _unary("sinh")
softsign = _unary("nn.softsign")
sqrt = _unary("sqrt")
square = _unary("square")
tan = _unary("tan")
tanh = _unary("tanh")
trunc = _unary("trunc")

add = _binary("add")
bitwise_and = _binary("bitwise_and")
bitwise_or = _binary("bitwise_or")
bitwise_xor = _binary("bitwise_xor")
divide = _binary("divide")
equal = _binary("equal")
fmod = _binary("fmod")
greater = _binary("greater")
greater_equal = _binary("greater_equal")
left_shift = _binary("left_shift")
less = _binary("less")
less_equal = _binary("less_equal")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
maximum = _binary("maximum")
minimum = _binary("minimum")
mod = _binary("mod")
multiply = _binary("multiply")
not_equal = _binary("not_equal")
power = _binary("power")
right_shift = _binary("right_shift")
subtract = _binary("subtract")


def astype(x: Tensor, dtype: str) -> Tensor:
    """Return the values in another dtype."""
    return emit("astype", x, dtype=dtype)


def clip(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:  # noqa: A002  as the attributes
    """Return the values limited to [min, max]; None is no limit."""
    return emit("clip", x, min=min, max=max)


def relu6(x: Tensor) -> Tensor:
    """Return the values limited to [0, 6]."""
    return clip(x, 0.0, 6.0)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where it is positive, else alpha * (exp(x) - 1)."""
    return emit("nn.elu", x, alpha=alpha)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where it is positive, else alpha * (exp(x / alpha) - 1)."""
    return emit("nn.celu", x, alpha=alpha)


def selu(x: Tensor) -> Tensor:
    """Return `elu` with factors that keep mean 0 and variance 1.

    Source: Klambauer, Unterthiner, Mayr, Hochreiter, "Self-Normalizing Neural Networks", 2017.
    """
    return emit("nn.selu", x)


def hard_sigmoid(x: Tensor) -> Tensor:
    """Return x / 6 + 1 / 2 limited to [0, 1]."""
    return emit("nn.hard_sigmoid", x, alpha=1 / 6, beta=0.5)


def hard_swish(x: Tensor) -> Tensor:
    """Return x * `hard_sigmoid`(x)."""
    return emit("nn.hard_swish", x)


def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    """Return log(1 + exp(beta * x)) / beta."""
    return emit("nn.softplus", x) if beta == 1 else emit("nn.softplus", x * beta) / beta


def leaky_relu(x: Tensor, alpha: float = 0.01) -> Tensor:
    """Return x where it is positive, else alpha * x."""
    return emit("nn.leaky_relu", x, alpha=alpha)


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """Return the Gaussian error linear unit; `approximate` takes the form with tanh."""
    return emit("nn.gelu_tanh" if approximate else "nn.gelu", x)


def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """Return x where it is positive, else slope * x; `slope` is a number for each channel (axis 1), or one."""
    if slope.ndim == 1 and x.ndim > 2:
        slope = slope.reshape(*slope.shape, *[1] * (x.ndim - 2))
    return emit("nn.prelu", x, slope)


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """Return x where the condition holds, else y."""
    known = next((each for each in (x, y) if isinstance(each, Tensor)), None)
    x, y = (_like(each, known) for each in (x, y))
    return emit("where", condition, x, y)


def _like(value: Operand, other: Tensor | None) -> Operand:
    """Return a number in the dtype of a tensor, not in that of the condition beside it."""
    return value if isinstance(value, Tensor) else Tensor(to_expr(value, "float32" if other is None else other.dtype))
