"""The function that is being built while a method of a module is traced: operators add their calls to it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kernelyard.errors import FrontendError
from kernelyard.plugins.api import BaseFunction, Constant, Expr, FreshNames, Function, FunctionBuilder, structural_key

if TYPE_CHECKING:
    from kernelyard.plugins.codegen_api import PrimFunc
    from kernelyard.runtime.api import RuntimeModule


class ExternFunctions(Protocol):
    """External functions by symbol, as `nn.ExternModule` has them."""

    @property
    def symbols(self) -> Mapping[str, Any]:
        """The functions' type inference, by symbol."""
        ...

    def load(self) -> RuntimeModule:
        """Return the compiled functions."""
        ...


@dataclass
class Externs:
    """The external modules that a model calls, each symbol in one of them."""

    allowed: bool
    module_of: dict[str, ExternFunctions] = field(default_factory=dict)

    def require(self, symbol: str) -> None:
        """Check that extern functions are allowed. Raises: FrontendError."""
        if not self.allowed:
            raise FrontendError(
                "this model calls its own compiled code",
                found=f"the extern function {symbol!r}",
                hint="pass allow_extern=True if you trust that code",
            )

    def add(self, module: ExternFunctions, symbol: str) -> None:
        """Record a call. Raises: FrontendError when these are not allowed, or two modules have the symbol."""
        self.require(symbol)
        for name in module.symbols:
            other = self.module_of.setdefault(name, module)
            if other is not module:
                raise FrontendError(f"two external modules have the symbol {name!r}", expected="each symbol once")

    def modules(self) -> tuple[ExternFunctions, ...]:
        """Return each module once, in the order of first call."""
        return tuple(dict.fromkeys(self.module_of.values()))


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

    parameters: the variable of each `Parameter`; constants: the values of those that become constants. states: the
    current values of each `Effect`, by name. labels: the path of each `Module` in the model, for messages. These
    objects are keys alone, by identity.
    """

    builder: FunctionBuilder
    parameters: dict[Hashable, Expr]
    states: dict[Hashable, dict[str, Expr]]
    labels: Mapping[Hashable, str]
    externs: Externs
    subroutines: Subroutines
    origin: str = ""
    constants: Mapping[Hashable, Constant] = field(default_factory=dict)

    def variable(self, parameter: Hashable) -> Expr:
        """Return the value of a parameter. Raises: FrontendError for one that the exported module does not have."""
        if parameter not in self.parameters:
            raise self._unknown("a parameter", repr(parameter))
        return self.parameters[parameter]

    def state(self, effect: Hashable) -> dict[str, Expr]:
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
    """Make operators add their calls to this function."""
    token = _CURRENT.set(scope)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@contextmanager
def inside(module: Hashable) -> Iterator[None]:
    """Name this module in messages about the calls made inside."""
    scope = current()
    outer = scope.origin
    label = scope.labels.get(module)
    if label:
        scope.origin = f"module '{label}' ({type(module).__name__})"
    try:
        yield
    finally:
        scope.origin = outer
