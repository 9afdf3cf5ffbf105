"""Passes: what they are, the context they run in, and how they are put in sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, ClassVar

from kernelyard.errors import KernelyardError, PassError
from kernelyard.ir import Function, IRModule, Var


class Instrument:
    """Watches passes run; override what you need. `depth` counts the sequences around the pass."""

    def enter(self, context: PassContext) -> None:
        """Observe that the context is entered."""

    def exit(self, context: PassContext) -> None:
        """Observe that the context is left."""

    def should_apply(self, kind: str, name: str, place: str) -> bool:
        """Return False to have something left out.

        kind: "pass" (those that are not required), "region" (a match that a backend has accepted) or "kernel" (of an
        operator). name: of the pass, pattern or operator; place: the node of the model, or "".
        """
        return True

    def before_pass(self, pass_: Pass, module: IRModule, depth: int) -> None:
        """Observe a pass that is about to run."""

    def after_pass(self, pass_: Pass, before: IRModule, after: IRModule, depth: int) -> None:
        """Observe a pass that has run; an error raised here is reported as that pass's."""


class PassContext:
    """Options and instruments of the passes that run inside `with PassContext(...)`.

    options: values by dotted name, e.g. {"fold_constants.max_bytes": 1 << 20}. history: names of the passes that
    have run in this context, in order.

    Example:
        >>> with PassContext(options={"fold_constants.max_bytes": 1024}) as context:
        ...     PassContext.current() is context
        True
    """

    def __init__(self, options: Mapping[str, Any] | None = None, instruments: Sequence[Instrument] = ()) -> None:
        self.options: dict[str, Any] = dict(options or {})
        self.instruments = tuple(instruments)
        self._own = self.instruments
        self.history: list[str] = []
        self._depth = 0
        self._tokens: list[Token[PassContext | None]] = []

    @staticmethod
    def current() -> PassContext:
        """Return the innermost context that is entered, or an empty one."""
        return _CURRENT.get() or PassContext()

    def extended(self, instruments: Sequence[Instrument]) -> PassContext:
        """Return a nested context with more instruments; only these observe that it is entered."""
        inner = PassContext(self.options, instruments)
        inner.instruments = (*self.instruments, *instruments)
        inner.history, inner._depth = self.history, self._depth
        return inner

    def option(self, name: str, default: Any) -> Any:
        """Return the value of an option, or `default`."""
        return self.options.get(name, default)

    def allows(self, kind: str, name: str, place: str = "") -> bool:
        """Return True where each instrument's `should_apply` lets something be applied; all of them are asked."""
        answers = [each.should_apply(kind, name, place) for each in self.instruments]
        return all(answers)

    def __enter__(self) -> PassContext:
        self._tokens.append(_CURRENT.set(self))
        for instrument in self._own:
            instrument.enter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            for instrument in self._own:
                instrument.exit(self)
        finally:
            _CURRENT.reset(self._tokens.pop())

    def apply(self, pass_: Pass, module: IRModule) -> IRModule:
        """Run one pass with the instruments around it.

        Raises: PassError for anything that is not already one of our errors; ours are raised as they are, with a
        note that names the pass and those that ran before it.
        """
        if not pass_.is_required and not self.allows("pass", pass_.name):
            return module
        depth, self._depth = self._depth, self._depth + 1
        try:
            for instrument in self.instruments:
                instrument.before_pass(pass_, module, depth)
            result = pass_.run(module, self)
            if not isinstance(result, IRModule):
                raise PassError("a pass must return an IRModule", found=type(result).__name__)
            for instrument in self.instruments:
                instrument.after_pass(pass_, module, result, depth)
        except KernelyardError as error:
            error.add_note(f"in {self._place(pass_)}")
            raise
        except Exception as error:
            raise PassError(f"pass {pass_.name!r} failed: {error!r}", where=self._place(pass_)) from error
        finally:
            self._depth = depth
        if not isinstance(pass_, Sequential):
            self.history.append(pass_.name)
        return result

    def _place(self, pass_: Pass) -> str:
        return f"pass {pass_.name!r}, run after: {', '.join(self.history) or 'nothing'}"


def place_of(var: Var) -> str:
    """Return what to call the node that computes a value: its name in the model, else the variable."""
    return var.origin or f"%{var.name}"


_CURRENT: ContextVar[PassContext | None] = ContextVar("kernelyard_pass_context", default=None)


class Pass(ABC):
    """A transformation of modules. Subclasses set `name` and give `run`; calling the pass runs it with instruments.

    is_required: a compile cannot do without it, so that a bisection does not leave it out.
    """

    name: str
    is_required: ClassVar[bool] = False

    @abstractmethod
    def run(self, module: IRModule, context: PassContext) -> IRModule:
        """Return the transformed module; the given one is not changed."""

    def __call__(self, module: IRModule) -> IRModule:
        """Run in the current context."""
        return PassContext.current().apply(self, module)

    def __repr__(self) -> str:
        return f"<pass {self.name}>"


class FunctionPass(Pass):
    """A pass that treats graph-level functions one at a time.

    By default it leaves composites and regions as they are: a backend was promised exactly what it accepted.
    """

    only_entry_functions: ClassVar[bool] = True

    @abstractmethod
    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        """Return the transformed function; return the same object when nothing changes."""

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        functions = module.entry_functions() if self.only_entry_functions else module.graph_functions()
        changed: dict[str, Function] = {}
        for name, function in functions.items():
            new = self.transform(function, module, context)
            if new is not function:
                changed[name] = new
        return module.with_functions(changed) if changed else module


class _ModulePassOf(Pass):
    def __init__(self, name: str, run: Callable[[IRModule, PassContext], IRModule]) -> None:
        self.name = name
        self._run = run

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        return self._run(module, context)


class _FunctionPassOf(FunctionPass):
    def __init__(self, name: str, transform: Callable[[Function, IRModule, PassContext], Function]) -> None:
        self.name = name
        self._transform = transform

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return self._transform(function, module, context)


def module_pass(name: str) -> Callable[[Callable[[IRModule, PassContext], IRModule]], Pass]:
    """Make a pass of a function of a module.

    Example:
        >>> @module_pass("nothing")
        ... def nothing(module, context):
        ...     return module
        >>> nothing
        <pass nothing>
    """
    return lambda run: _ModulePassOf(name, run)


def function_pass(name: str) -> Callable[[Callable[[Function, IRModule, PassContext], Function]], Pass]:
    """Make a pass of a function that transforms one graph-level function."""
    return lambda transform: _FunctionPassOf(name, transform)


class Sequential(Pass):
    """Passes run one after another, as one pass."""

    is_required = True  # its passes are asked for one by one

    def __init__(self, passes: Sequence[Pass], name: str = "sequential") -> None:
        self.passes = tuple(passes)
        self.name = name

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        for pass_ in self.passes:
            module = context.apply(pass_, module)
        return module


class WhereChanged(Sequential):
    """Passes of which the others run only where the first changed the module."""

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        first, *others = self.passes
        after = context.apply(first, module)
        return after if after is module else Sequential(others, self.name).run(after, context)


class Repeat(Sequential):
    """Passes run one after another, again and again, until all of them leave the module as it is."""

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        while (after := super().run(module, context)) is not module:
            module = after
        return module
