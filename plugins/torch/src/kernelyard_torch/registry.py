"""The table of converters: the full name of an operator ("aten.add.Tensor") -> what says it in our vocabulary.

A converter is called with the node and then every argument of the operator's schema in order, defaults filled in:
tensors as expressions, sizes as dims, dtypes as names. Arguments that say where or how a result is stored are left
out, see `node.STORAGE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from kernelyard.plugins.api import Expr
from kernelyard_torch.complex_numbers import Complex

Results: TypeAlias = "Expr | Complex | Sequence[Expr | Complex | None] | None"
Converter: TypeAlias = "Callable[..., Results]"
AnyConverter = TypeVar("AnyConverter", bound=Converter)

_CONVERTERS: dict[str, Converter] = {}
_OF_COMPLEX_NUMBERS: dict[str, Converter] = {}


def register(name: str, function: Converter, complex_numbers: bool = False) -> None:
    """Add a converter; one for `complex_numbers` is for calls that take or give complex tensors.

    Raises: ValueError for a name that has one.
    """
    table = _OF_COMPLEX_NUMBERS if complex_numbers else _CONVERTERS
    if name in table:
        raise ValueError(f"{name} has a converter already")
    table[name] = function


def converter(*names: str, complex_numbers: bool = False) -> Callable[[AnyConverter], AnyConverter]:
    """Register a converter for one or several operators: the decorator form of `register`."""

    def add(function: AnyConverter) -> AnyConverter:
        for name in names:
            register(name, function, complex_numbers)
        return function

    return add


def find(target: Any, complex_numbers: bool = False) -> Converter | None:
    """Return the converter of what an fx node calls, or None."""
    return (_OF_COMPLEX_NUMBERS if complex_numbers else _CONVERTERS).get(str(target))


def operators() -> tuple[str, ...]:
    """Return the names of all operators that have a converter."""
    return tuple(sorted({*_CONVERTERS, *_OF_COMPLEX_NUMBERS}))
