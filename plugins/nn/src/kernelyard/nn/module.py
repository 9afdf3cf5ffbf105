"""Module: a part of a model, made of parameters and other modules; ModuleList and ModuleDict hold several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from kernelyard.errors import FrontendError, did_you_mean
from kernelyard.nn import scope
from kernelyard.nn.subroutine import call_subroutine
from kernelyard.nn.tensor import Parameter

if TYPE_CHECKING:
    from kernelyard.plugins.api import IRModule

T = TypeVar("T", bound="Parameter | Module")


class Module:
    """A part of a model. A subclass makes parameters and modules attributes, and writes `forward` with tensors.

    Example:
        >>> from kernelyard import nn
        >>> class Twice(nn.Module):
        ...     def __init__(self):
        ...         self.linear = nn.Linear(4, 4)
        ...     def forward(self, x):
        ...         return self.linear(self.linear(x))
        >>> [name for name, _ in Twice().named_parameters()]
        ['linear.weight', 'linear.bias']

    define_subroutine: True makes `forward` a function of its own in the IR, which equal calls share.
    """

    forward: Any
    define_subroutine: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Trace `forward`. Raises: FrontendError outside of an export."""
        with scope.inside(self):
            if self.define_subroutine:
                return call_subroutine(self.forward, args, kwargs, type(self).__name__)
            return self.forward(*args, **kwargs)

    def children(self) -> Iterator[tuple[str, Parameter | Module]]:
        """Yield the parameters and modules of this one by name, in the order in which they were made."""
        for name, value in vars(self).items():
            if isinstance(value, (Parameter, Module)):
                yield name, value

    def replace_child(self, name: str, new: Parameter | Module) -> None:
        """Put another parameter or module in the place of a child."""
        setattr(self, name, new)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all in it, each once, by path; its own is `prefix`."""
        seen: set[Module] = set()
        for path, value in _walk(self, prefix):
            if isinstance(value, Module) and value not in seen:
                seen.add(value)
                yield path, value

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield all parameters by path, each once, under the first of its paths."""
        seen: set[Parameter] = set()
        for path, value in _walk(self, prefix):
            if isinstance(value, Parameter) and value not in seen:
                seen.add(value)
                yield path, value

    def parameters(self) -> Iterator[Parameter]:
        """Return all parameters, each once."""
        return (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the numbers of all parameters that have some, by path; a shared parameter is there under each path."""
        found = ((path, value.data) for path, value in _walk(self) if isinstance(value, Parameter))
        return {path: data for path, data in found if data is not None}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> tuple[list[str], list[str]]:
        """Give parameters their numbers (arrays, or tensors of any library); answers missing and unknown paths.

        Nothing is changed when one does not fit. Raises: FrontendError for data of another shape or dtype; with
        `strict` also for missing and unknown paths.
        """
        own = {path: value for path, value in _walk(self) if isinstance(value, Parameter)}
        missing = [path for path in own if path not in state]
        unknown = [path for path in state if path not in own]
        if strict and (missing or unknown):
            raise _unfitting(missing, unknown, list(own))
        checked: dict[str, Parameter] = {}
        for path, parameter in own.items():
            if path in state:
                try:
                    checked[path] = Parameter(parameter.shape, parameter.dtype, state[path])  # pyright: ignore[reportArgumentType]
                except FrontendError as error:
                    error.where = path
                    raise
        for path, holder in checked.items():
            own[path].adopt(holder)
        return missing, unknown

    def to(self, dtype: str) -> Module:
        """Give the floating-point parameters another dtype, numbers included, and state, too; answers this module."""
        for _, value in _walk(self):
            if isinstance(value, Parameter):
                value.to(dtype)
            else:
                value._change_dtype(dtype)
        return self

    def _change_dtype(self, dtype: str) -> None:
        """Give what a module has beside parameters another dtype; most have nothing."""

    def export(self, spec: Mapping[str, Any], allow_extern: bool = False) -> tuple[IRModule, dict[str, Parameter]]:
        """Return the module as IR: one function for each method that `spec` names (see `nn.MethodSpec`).

        Functions take the method's inputs, then the state of effects, then all parameters, in the order of the answered
        dictionary; those names are `input_names` of the functions. A module with effects has a function
        `_initialize_effect` that gives their first state. allow_extern: external modules may be called; they are
        compiled and attached.
        Raises: FrontendError, ToolchainError, and what type rules raise.
        """
        from kernelyard.nn.export import export

        return export(self, spec, allow_extern)


class _List(Module, Generic[T]):
    """Children in order."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = list(items)

    def children(self) -> Iterator[tuple[str, Parameter | Module]]:
        return ((str(number), item) for number, item in enumerate(self._items))

    def replace_child(self, name: str, new: Parameter | Module) -> None:
        self._items[int(name)] = new  # pyright: ignore[reportArgumentType, reportCallIssue]

    def append(self, item: T) -> None:
        """Add one at the end."""
        self._items.append(item)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> T:
        return self._items[index]

    def __setitem__(self, index: int, item: T) -> None:
        self._items[index] = item


class _Dict(Module, Generic[T]):
    """Children by name."""

    def __init__(self, items: Mapping[str, T] | None) -> None:
        self._items = dict(items or {})

    def children(self) -> Iterator[tuple[str, Parameter | Module]]:
        return iter(self._items.items())

    def replace_child(self, name: str, new: Parameter | Module) -> None:
        self._items[name] = new  # pyright: ignore[reportArgumentType]

    def items(self) -> Iterable[tuple[str, T]]:
        """Return names and children."""
        return self._items.items()

    def keys(self) -> Iterable[str]:
        """Return the names."""
        return self._items.keys()

    def values(self) -> Iterable[T]:
        """Children."""
        return self._items.values()

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __getitem__(self, name: str) -> T:
        return self._items[name]

    def __setitem__(self, name: str, item: T) -> None:
        self._items[name] = item


class ModuleList(_List[Module]):
    """Modules in order; calling it calls one after the other."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class ModuleDict(_Dict[Module]):
    """Modules by name."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__(modules)


class ParameterList(_List[Parameter]):
    """Parameters in order."""

    def __init__(self, parameters: Iterable[Parameter] = ()) -> None:
        super().__init__(parameters)


class ParameterDict(_Dict[Parameter]):
    """Parameters by name."""

    def __init__(self, parameters: Mapping[str, Parameter] | None = None) -> None:
        super().__init__(parameters)


def _walk(module: Module, path: str = "", above: tuple[Module, ...] = ()) -> Iterator[tuple[str, Parameter | Module]]:
    """Yield a module and everything in it, by path. Raises: FrontendError when it contains itself."""
    if module in above:
        raise FrontendError("a module contains itself", where=path, found=type(module).__name__)
    yield path, module
    for name, child in module.children():
        place = f"{path}.{name}" if path else name
        if isinstance(child, Module):
            yield from _walk(child, place, (*above, module))
        else:
            yield place, child


def _unfitting(missing: list[str], unknown: list[str], known: list[str]) -> FrontendError:
    close = did_you_mean(unknown[0], known) if unknown else None
    return FrontendError(
        "the state does not fit the module",
        found=f"unknown: {', '.join(unknown)}" if unknown else None,
        expected=f"also {', '.join(missing)}" if missing else None,
        hint=close or "strict=False leaves these out",
    )
