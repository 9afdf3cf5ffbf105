"""Specs of the inputs of a module's methods: tensors with sizes that may be symbolic, numbers, tuples.

A spec maps each method that becomes an entry function to the kinds of its arguments:
`{"forward": {"x": spec.Tensor(["n", 784], "float32")}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from kernelyard import dims, dtypes
from kernelyard.dims import Dim, Shape
from kernelyard.errors import FrontendError, KernelyardError

if TYPE_CHECKING:
    from kernelyard.nn.module import Module
    from kernelyard.plugins.api import IRModule


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
Mode: TypeAlias = Literal["plain", "packed", "none"]


@dataclass(frozen=True)
class MethodSpec:
    """A method's inputs, and how its function takes parameters and state; a bare mapping of inputs stands for one.

    param_mode: "plain" (an input for each parameter), "packed" (one tuple) or "none" (constants); None is "plain" in
    `Module.export`, "none" in a `ModuleSpec`. effect_mode: the state of effects as inputs and as results ("plain"), as
    one tuple each ("packed"), or "none": it is as at the beginning, and what becomes of it is dropped.
    Raises: FrontendError for another mode.

    Example:
        >>> MethodSpec({"x": Tensor(["n", 4])}, param_mode="packed").effect_mode
        'plain'
    """

    inputs: Mapping[str, Any]
    param_mode: Mode | None = None
    effect_mode: Mode = "plain"

    def __post_init__(self) -> None:
        modes = get_args(Mode)
        for name in ("param_mode", "effect_mode"):
            mode = getattr(self, name)
            if mode not in modes and not (name == "param_mode" and mode is None):
                raise FrontendError(f"invalid {name}", found=repr(mode), expected=", ".join(modes))


Methods: TypeAlias = "Mapping[str, Mapping[str, Argument] | MethodSpec]"


@dataclass(frozen=True)
class ModuleSpec:
    """A module with the inputs of its methods: a model that `ky.compile` takes.

    allow_extern: external modules may be called; see `nn.ExternModule`.
    """

    module: Module
    methods: Mapping[str, Mapping[str, Any] | MethodSpec]
    allow_extern: bool = False

    def to_ir(self) -> IRModule:
        """Return the module as IR, its parameters as constants unless a method's `param_mode` says something else.

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
            "invalid size", found=repr(value), expected="a number, a name, or an expression over names"
        ) from error
