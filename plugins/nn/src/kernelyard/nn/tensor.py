"""Tensor: a value of the function that is being traced. Parameter: a tensor that belongs to a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

import kernelyard.ops  # noqa: F401  the vocabulary must be declared before it is used
from kernelyard import dims, dtypes
from kernelyard.dims import Dim, Shape
from kernelyard.errors import FrontendError
from kernelyard.nn import scope
from kernelyard.plugins.api import Call, Constant, Expr, TensorType, Var, get_op
from kernelyard.runtime.api import as_array

Operand: TypeAlias = "Tensor | np.ndarray | float | int | bool"


class Tensor:
    """A value of the function that is being traced; `shape` may have symbolic dims.

    Arithmetic, comparison of order and `@` are operators of the vocabulary. `==` compares identity.
    """

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    @staticmethod
    def placeholder(shape: Sequence[Dim], dtype: str) -> Tensor:
        """Return a tensor of which only shape and dtype are known.

        What inference functions of extern symbols return.
        """
        return Tensor(Var("placeholder", TensorType(tuple(shape), dtype)))

    @property
    def expr(self) -> Expr:
        """The value in the IR."""
        return self._expr

    @property
    def type(self) -> TensorType:
        return self._expr.tensor_type

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def reshape(self, *shape: Dim) -> Tensor:
        """See `op.reshape`."""
        sizes = dims.product(self.shape)
        return emit("reshape", self, shape=complete_shape(shape, sizes))

    def permute_dims(self, *axes: int) -> Tensor:
        """Return the axes in another order."""
        return emit("permute_dims", self, axes=tuple(axis % self.ndim for axis in axes))

    def astype(self, dtype: str) -> Tensor:
        """Return the values in another dtype."""
        return emit("astype", self, dtype=dtype)

    def __add__(self, other: Operand) -> Tensor:
        return emit("add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return emit("add", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return emit("subtract", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return emit("subtract", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return emit("multiply", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return emit("multiply", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return emit("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return emit("divide", other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return emit("power", self, other)

    def __matmul__(self, other: Operand) -> Tensor:
        return emit("matmul", self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return emit("power", other, self)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return emit("matmul", other, self)

    def __lt__(self, other: Operand) -> Tensor:
        return emit("less", self, other)

    def __le__(self, other: Operand) -> Tensor:
        return emit("less_equal", self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return emit("greater", self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return emit("greater_equal", self, other)

    def __neg__(self) -> Tensor:
        return emit("negative", self)

    def __bool__(self) -> bool:
        raise FrontendError("a traced tensor has no truth value", found=repr(self), hint="op.where selects elementwise")

    # An array on the left leaves arithmetic to the tensor.
    __array_ufunc__ = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape}, {self.dtype!r})"


class Parameter(Tensor):
    """A tensor of numbers that a module has: sizes are known, the numbers may come later (`data`).

    Raises: FrontendError when data do not fit, UnknownDtypeError.
    """

    def __init__(self, shape: Sequence[int], dtype: str = "float32", data: Any = None) -> None:
        super().__init__(Var("parameter", TensorType(tuple(shape), dtype)))
        if not self.type.is_static:
            raise FrontendError("the sizes of a parameter must be known integers", found=self.shape)
        self._data: np.ndarray | None = None
        if data is not None:
            self.data = data

    @property
    def expr(self) -> Expr:
        return scope.current().variable(self)

    @property
    def data(self) -> np.ndarray | None:
        """The numbers, read-only; None as long as there are none. What is set is copied."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        array = np.array(as_array(value), order="C")
        found = array.shape, dtypes.from_numpy(array.dtype)
        if found != (self.shape, self.dtype):
            raise FrontendError(
                "the data have another shape or dtype than the parameter",
                found=found,
                expected=(self.shape, self.dtype),
            )
        array.flags.writeable = False
        self._data = array

    def adopt(self, other: Parameter) -> None:
        """Take the numbers of a parameter of the same shape and dtype, without a copy."""
        self._data = other._data

    def to(self, dtype: str) -> None:
        """Change the dtype, numbers included, if it is a floating-point one."""
        if not (dtypes.is_float(self.dtype) and dtypes.is_float(dtype)):
            return
        data = self._data
        self._expr = Var("parameter", TensorType(self.shape, dtype))
        if data is not None:
            self.data = data.astype(dtypes.to_numpy(dtype))


def emit(name: str, *operands: Operand, **attrs: Any) -> Tensor:
    """Add a call of an operator, whose result is one tensor, to the function that is being traced.

    Numbers take the dtype of the first tensor. Raises: FrontendError, and what the operator's type rule raises.
    """
    return Tensor(emit_call(name, *operands, **attrs))


def emit_call(name: str, *operands: Operand, **attrs: Any) -> Var:
    """Emit a call of an op with any result; see `emit`."""
    traced = scope.current()
    dtype = next((each.dtype for each in operands if isinstance(each, Tensor)), "float32")
    args = [to_expr(each, dtype) for each in operands]
    return traced.builder.bind(Call(get_op(name), args, attrs), origin=traced.origin)


def to_expr(value: Operand, dtype: str = "float32") -> Expr:
    """Return an operand in the IR. Raises: FrontendError for what is none, and for 1.5 among integers."""
    if isinstance(value, Tensor):
        return value.expr
    if isinstance(value, (np.ndarray, np.generic)):
        return Constant(np.array(value))
    if not isinstance(value, (bool, int, float)):
        raise FrontendError("invalid operand", found=type(value).__name__, expected="a tensor, an array or a number")
    if isinstance(value, float) and not dtypes.is_float(dtype):
        raise FrontendError("a float cannot be combined with an integer tensor", found=f"{value} and {dtype}")
    return Constant(np.asarray(value, dtypes.to_numpy(dtype)))


def complete_shape(shape: Sequence[Dim], numel: Dim) -> Shape:
    """Return a shape in which -1, once at most, is replaced by what is left of the elements."""
    given = tuple(shape)
    if sum(dim == -1 for dim in given) > 1:
        raise FrontendError("only one size can be -1", found=given)
    rest = dims.floordiv(numel, dims.product([dim for dim in given if dim != -1])) if -1 in given else -1
    return tuple(rest if dim == -1 else dim for dim in given)
