"""Modules whose `forward` is a function of its own: traced apart from its caller, and shared by equal calls.

The function takes the tensors among the arguments, then whatever parameters and state it reads; it returns its tensors,
then the state that it replaced. It is private: the driver puts it in place of its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelyard.errors import FrontendError
from kernelyard.nn import scope
from kernelyard.nn.scope import Scope
from kernelyard.nn.tensor import Tensor
from kernelyard.plugins.api import PRIVATE, Expr, Function, FunctionBuilder, Tuple, Var, operands


def call_subroutine(function: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
    """Trace `function(*args, **kwargs)` as a subroutine and call it: a function of the module, named after `name`.

    Raises: FrontendError when it returns no tensors.
    """
    outer = scope.current()
    inner = inner_scope(InnerScope, outer)
    args, kwargs = map_tensors((args, kwargs), inner.take)
    with scope.tracing(inner):
        result = function(*args, **kwargs)
        own: list[Expr] = []
        map_tensors(result, lambda tensor: own.append(tensor.expr))
        replaced = inner.replaced()
        values = [*own, *(value for *_, value in replaced)]
    if not own:
        raise FrontendError("a subroutine returns no tensors", where=outer.origin or None, found=repr(result))
    body = inner.builder.function(*values, attrs={PRIVATE: True})
    check_closed(body, outer.origin)
    called = outer.builder.call_function(outer.subroutines.add(body, name), inner.arguments, body.result_type)
    fields = [called] if len(values) == 1 else [outer.builder.get(called, index) for index in range(len(values))]
    results = iter(map(Tensor, fields))
    answer = map_tensors(result, lambda _: next(results))
    for effect, state, _ in replaced:
        outer.state(effect)[state] = next(results).expr
    return answer


def check_closed(body: Function, origin: str, what: str = "a subroutine", remedy: str = "forward") -> None:
    """Check that a function uses only the tensors of its caller that it was given. Raises: FrontendError."""
    known = {*body.params, *(binding.var for binding in body.bindings)}
    results = body.result.fields if isinstance(body.result, Tuple) else (body.result,)
    for operand in (*results, *(each for binding in body.bindings for each in operands(binding.value))):
        if isinstance(operand, Var) and operand not in known:
            raise FrontendError(
                f"{what} uses a tensor that it was not given",
                where=origin or None,
                found=repr(Tensor(operand)),
                hint=f"make it an argument of {remedy}",
            )


@dataclass
class InnerScope(Scope):
    """The scope of a subroutine: what it reads of the caller's becomes a parameter when it is first read."""

    outer: Scope = None  # pyright: ignore[reportAssignmentType]  fields after those with defaults need one
    arguments: list[Expr] = field(default_factory=list)
    _first: dict[Hashable, dict[str, Expr]] = field(default_factory=dict)

    def take(self, value: Tensor, name: str = "x") -> Tensor:
        """Return a parameter that stands for a value of the caller."""
        with scope.tracing(self.outer):
            self.arguments.append(value.expr)
        return Tensor(self.builder.parameter(value.type, name))

    def variable(self, parameter: Hashable) -> Expr:
        if parameter not in self.parameters:
            self.parameters[parameter] = self.take(Tensor(self.outer.variable(parameter)), "parameter").expr
        return self.parameters[parameter]

    def state(self, effect: Hashable) -> dict[str, Expr]:
        if effect not in self.states:
            outer = self.outer.state(effect)
            self._first[effect] = {name: self.take(Tensor(value), name).expr for name, value in outer.items()}
            self.states[effect] = dict(self._first[effect])
        return self.states[effect]

    def replaced(self) -> list[tuple[Hashable, str, Expr]]:
        """Return the states that were assigned another value."""
        return [
            (effect, name, now)
            for effect, states in self.states.items()
            for name, now in states.items()
            if now is not self._first[effect][name]
        ]


def inner_scope(kind: type[InnerScope], outer: Scope) -> InnerScope:
    """Return the scope of a function that is called in another one."""
    return kind(
        *(FunctionBuilder(), {}, {}, outer.labels, outer.externs, outer.subroutines, outer.origin),
        constants=outer.constants,
        outer=outer,
    )


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return a value with each tensor in it replaced, through tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value
