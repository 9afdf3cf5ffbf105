"""Types of expressions: tensors with static or symbolic shapes, tuples of them, and functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from kernelyard import dims, dtypes
from kernelyard.dims import Dim, Shape, SymbolicDim
from kernelyard.errors import IRError


@dataclass(frozen=True)
class TensorType:
    """A tensor: `shape` is a tuple of dims, `dtype` a dtype name.

    Raises: IRError for a dim that is negative, larger than `dims.MAX_DIM`, or neither an int nor symbolic;
    UnknownDtypeError.

    Example:
        >>> TensorType((dims.symbol("n"), 3), "float32")
        Tensor[(n, 3), float32]
    """

    shape: Shape
    dtype: str

    def __post_init__(self) -> None:
        dtypes.to_numpy(self.dtype)
        for dim in self.shape:
            if type(dim) is not int and not isinstance(dim, SymbolicDim):
                raise IRError(
                    "a dim is an int or a symbolic dim",
                    found=f"{dim!r} in {self.shape}",
                    hint=f"kernelyard.dims.symbol({dim!r})" if isinstance(dim, str) else None,
                )
            if isinstance(dim, int) and dim < 0:
                raise IRError("a size is negative", found=f"{dim} in {self.shape}", expected="0 or more")
            if isinstance(dim, int) and dim > dims.MAX_DIM:
                raise IRError("a size is too large", found=f"{dim} in {self.shape}", expected=f"{dims.MAX_DIM} at most")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        """The number of elements."""
        return dims.product(self.shape)

    @property
    def nbytes(self) -> Dim:
        """The size in bytes when stored densely."""
        return self.numel * dtypes.itemsize(self.dtype)

    @property
    def is_static(self) -> bool:
        """True when every dim is a known number."""
        return all(isinstance(dim, int) for dim in self.shape)

    def __repr__(self) -> str:
        inner = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"Tensor[({inner}), {self.dtype}]"


@dataclass(frozen=True)
class TupleType:
    """A tuple of types."""

    fields: tuple[Type, ...]

    def __repr__(self) -> str:
        return f"Tuple[{', '.join(map(repr, self.fields))}]"


@dataclass(frozen=True)
class FunctionType:
    """A closure: what it takes and gives when it is invoked; what it has captured does not show.

    Example:
        >>> FunctionType((TensorType((2,), "float32"),), TensorType((), "bool"))
        Function[(Tensor[(2,), float32]) -> Tensor[(), bool]]
    """

    params: tuple[Type, ...]
    result: Type

    def __repr__(self) -> str:
        return f"Function[({', '.join(map(repr, self.params))}) -> {self.result!r}]"


Type: TypeAlias = "TensorType | TupleType | FunctionType"


def leaves_of(type_: Type) -> tuple[TensorType | FunctionType, ...]:
    """Return the tensors and closures in a type, left to right."""
    if isinstance(type_, TupleType):
        return tuple(leaf for field in type_.fields for leaf in leaves_of(field))
    return (type_,)


def tensors_of(type_: Type) -> tuple[TensorType, ...]:
    """Return the tensors in a type, left to right."""
    if isinstance(type_, TensorType):  # nearly every type
        return (type_,)
    return tuple(leaf for leaf in leaves_of(type_) if isinstance(leaf, TensorType))


def symbols_of(types: Iterable[Type]) -> frozenset[str]:
    """Return the names of the symbolic dims that occur in some types."""
    sizes = (dim for type_ in types for tensor in tensors_of(type_) for dim in tensor.shape)
    return frozenset(name for dim in sizes if not isinstance(dim, int) for name in dims.symbols_of(dim))


def substitute(type_: Type, values: dict[str, Dim]) -> Type:
    """Replace symbols in `type_` by other dims."""
    if isinstance(type_, TensorType):
        return TensorType(tuple(dims.substitute(dim, values) for dim in type_.shape), type_.dtype)
    if isinstance(type_, FunctionType):
        return FunctionType(tuple(substitute(p, values) for p in type_.params), substitute(type_.result, values))
    return TupleType(tuple(substitute(field, values) for field in type_.fields))
