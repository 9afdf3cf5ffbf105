"""The function that is being built while a method of a module is traced: operators add their calls to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelyard.errors import FrontendError
from kernelyard.ir import FunctionBuilder, Var

if TYPE_CHECKING:
    from kernelyard.nn.extern import ExternModule
    from kernelyard.nn.module import Module
    from kernelyard.nn.tensor import Parameter


@dataclass
class Externs:
    """The external modules that a model calls, each symbol in one of them."""

    allowed: bool
    home: dict[str, ExternModule] = field(default_factory=dict)

    def add(self, module: ExternModule, symbol: str) -> None:
        """Note a call. Raises: FrontendError when these are not allowed, or two modules have the symbol."""
        if not self.allowed:
            raise FrontendError(
                "this model calls compiled code of its own",
                found=f"the extern function {symbol!r}",
                hint="pass allow_extern=True if you trust that code",
            )
        for name in module.symbols:
            other = self.home.setdefault(name, module)
            if other is not module:
                raise FrontendError(f"two external modules have the symbol {name!r}", expected="each symbol once")

    def modules(self) -> tuple[ExternModule, ...]:
        """Each module once, in the order of first call."""
        return tuple(dict.fromkeys(self.home.values()))


@dataclass
class Scope:
    """A function while it is traced.

    parameters: the variable of each parameter. labels: the path of each module in the model, for messages.
    """

    builder: FunctionBuilder
    parameters: Mapping[Parameter, Var]
    labels: Mapping[Module, str]
    externs: Externs
    origin: str = ""

    def variable(self, parameter: Parameter) -> Var:
        """The variable of a parameter. Raises: FrontendError for one that the exported module does not have."""
        if parameter not in self.parameters:
            raise FrontendError(
                "a parameter is used that the exported module does not have",
                where=self.origin or None,
                found=repr(parameter),
                hint="make it, or the module that has it, an attribute",
            )
        return self.parameters[parameter]


_CURRENT: ContextVar[Scope | None] = ContextVar("kernelyard_nn_scope", default=None)


def current() -> Scope:
    """The function that is being traced. Raises: FrontendError outside of an export."""
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
