"""What the inputs of a module's methods are: tensors with sizes that may be symbolic, numbers, tuples.

A spec maps each method that becomes an entry function to the kinds of its arguments:
`{"forward": {"x": spec.Tensor(["n", 784], "float32")}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kernelyard import dims, dtypes
from kernelyard.dims import Dim, Shape
from kernelyard.errors import FrontendError, KernelyardError

if TYPE_CHECKING:
    from kernelyard.ir import IRModule
    from kernelyard.nn.module import Module


class Tensor:
    """A tensor. A size is a number, a name (`"n"`), an expression over names (`"2 * n"`), or a dim.

    Raises: FrontendError for anything else, UnknownDtypeError.

    Example:
        >>> Tensor(["n", 784])
        spec.Tensor((n, 784), 'float32')
    """

    def __init__(self, shape: Sequence[Dim | str], dtype: str = "float32") -> None:
        dtypes.to_numpy(dtype)
        self.shape: Shape = tuple(map(_dim, shape))
        self.dtype = dtype

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"spec.Tensor(({sizes}), {self.dtype!r})"


@dataclass(frozen=True)
class Int:
    """A size: the method gets the symbolic dim of that name (the argument's own name unless it is given).

    The size is read off the input tensors, so one of their shapes must have it; there is no input for it.
    """

    name: str | None = None


@dataclass(frozen=True)
class Tuple:
    """Several inputs as one argument, a tuple."""

    items: tuple[Argument, ...]

    def __init__(self, items: Sequence[Argument]) -> None:
        object.__setattr__(self, "items", tuple(items))


# Plain values reach the method as they are.
Argument: TypeAlias = "Tensor | Int | Tuple | int | float | bool | str | None"
Methods: TypeAlias = "Mapping[str, Mapping[str, Argument]]"


@dataclass(frozen=True)
class ModuleSpec:
    """A module with the inputs of its methods: a model that `ky.compile` takes.

    allow_extern: external modules may be called; see `nn.ExternModule`.
    """

    module: Module
    methods: Mapping[str, Mapping[str, Any]]
    allow_extern: bool = False

    def to_ir(self) -> IRModule:
        """The module as IR, its parameters as constants.

        Raises: FrontendError, also when a parameter has no numbers yet; ToolchainError.
        """
        from kernelyard.nn.export import to_ir

        return to_ir(self)


def _dim(value: Dim | str) -> Dim:
    if not isinstance(value, str):
        return value
    try:
        return dims.parse(value)
    except KernelyardError as error:
        raise FrontendError(
            "this is no size", found=repr(value), expected="a number, a name, or an expression over names"
        ) from error
