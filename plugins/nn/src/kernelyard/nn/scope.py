"""The function that is being built while a method of a module is traced: operators add their calls to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelyard.errors import FrontendError
from kernelyard.plugins.api import BaseFunction, Expr, FreshNames, Function, FunctionBuilder, structural_key

if TYPE_CHECKING:
    from kernelyard.nn.effect import Effect
    from kernelyard.nn.extern import ExternModule
    from kernelyard.nn.module import Module
    from kernelyard.nn.tensor import Parameter, Tensor
    from kernelyard.plugins.codegen_api import PrimFunc


@dataclass
class Externs:
    """The external modules that a model calls, each symbol in one of them."""

    allowed: bool
    home: dict[str, ExternModule] = field(default_factory=dict)

    def require(self, symbol: str) -> None:
        """Raises: FrontendError when extern functions are not allowed."""
        if not self.allowed:
            raise FrontendError(
                "this model calls its own compiled code",
                found=f"the extern function {symbol!r}",
                hint="pass allow_extern=True if you trust that code",
            )

    def add(self, module: ExternModule, symbol: str) -> None:
        """Note a call. Raises: FrontendError when these are not allowed, or two modules have the symbol."""
        self.require(symbol)
        for name in module.symbols:
            other = self.home.setdefault(name, module)
            if other is not module:
                raise FrontendError(f"two external modules have the symbol {name!r}", expected="each symbol once")

    def modules(self) -> tuple[ExternModule, ...]:
        """Each module once, in the order of first call."""
        return tuple(dict.fromkeys(self.home.values()))


class Subroutines:
    """The functions that methods call, each once, under names that no method has."""

    def __init__(self, methods: Iterable[str]) -> None:
        self.functions: dict[str, BaseFunction] = {}
        self._names = FreshNames(methods)
        self._known: dict[object, str] = {}

    def add(self, function: Function, wanted: str) -> str:
        """Return the name of a function: that of an equal one where there is one."""
        return self._add(structural_key(function), function, wanted)

    def add_loop_function(self, function: PrimFunc, wanted: str) -> str:
        """Return the name of a loop-level function."""
        return self._add(function, function, wanted)

    def _add(self, key: object, function: BaseFunction, wanted: str) -> str:
        if key not in self._known:
            self._known[key] = self._names.unique(wanted)
            self.functions[self._known[key]] = function
        return self._known[key]


@dataclass
class Scope:
    """A function while it is traced.

    parameters: the variable of each parameter. states: those of each effect, by name, as they are now. labels: the path
    of each module in the model, for messages.
    """

    builder: FunctionBuilder
    parameters: dict[Parameter, Expr]
    states: dict[Effect, dict[str, Tensor]]
    labels: Mapping[Module, str]
    externs: Externs
    subroutines: Subroutines
    origin: str = ""

    def variable(self, parameter: Parameter) -> Expr:
        """Return the value of a parameter. Raises: FrontendError for one that the exported module does not have."""
        if parameter not in self.parameters:
            raise self._unknown("a parameter", repr(parameter))
        return self.parameters[parameter]

    def state(self, effect: Effect) -> dict[str, Tensor]:
        """Return an effect's current state, to be read and replaced. Raises: FrontendError as `variable`."""
        if effect not in self.states:
            raise self._unknown("an effect", type(effect).__name__)
        return self.states[effect]

    def _unknown(self, kind: str, found: str) -> FrontendError:
        return FrontendError(
            f"{kind} is used that is not an attribute of the exported module",
            where=self.origin or None,
            found=found,
            hint="make it, or the module that has it, an attribute",
        )


_CURRENT: ContextVar[Scope | None] = ContextVar("kernelyard_nn_scope", default=None)


def current() -> Scope:
    """Return the function that is being traced. Raises: FrontendError outside of an export."""
    scope = _CURRENT.get()
    if scope is None:
        raise FrontendError(
            "modules and operators are traced, not run",
            hint="export(spec) a module that calls them, or compile nn.ModuleSpec(module, spec)",
        )
    return scope


@contextmanager
def tracing(scope: Scope) -> Iterator[None]:
    """Operators add their calls to this function."""
    token = _CURRENT.set(scope)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def inside(module: Module) -> Iterator[None]:
    """Calls come from this module, for messages."""
    scope = current()
    outer = scope.origin
    label = scope.labels.get(module)
    if label:
        scope.origin = f"module '{label}' ({type(module).__name__})"
    try:
        yield
    finally:
        scope.origin = outer
