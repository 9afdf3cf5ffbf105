"""Index definitions and uses of each value of a function (use-def chains)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from kernelyard.dims import Bounds
from kernelyard.ir.expr import Binding, Constant, Expr, Function, Var, operands, with_operands
from kernelyard.ir.size_bounds import size_bounds


class Dataflow:
    """The producers, consumers and order of the values of one function.

    Variables that merely rename a value (`y = x`) are looked through: see `resolve`.
    """

    def __init__(
        self,
        bindings: Iterable[Binding],
        result: Expr | None = None,
        size_bounds: Mapping[str, Bounds] = MappingProxyType({}),
    ) -> None:
        """size_bounds: of the function's symbols."""
        self.bindings = tuple(bindings)
        self.size_bounds = size_bounds
        self.values: dict[Var, Expr] = {binding.var: binding.value for binding in self.bindings}
        self.position: dict[Var, int] = {binding.var: i for i, binding in enumerate(self.bindings)}
        self._behind: dict[Expr, Expr] = {}
        for binding in self.bindings:
            if isinstance(binding.value, (Var, Constant)):
                self._behind[binding.var] = self.resolve(binding.value)
        self._users: dict[Var, list[Var]] = {}
        for binding in self.bindings:
            for operand in dict.fromkeys(self.resolve(o) for o in operands(binding.value)):
                if isinstance(operand, Var) and not self.is_alias(binding.var):
                    self._users.setdefault(operand, []).append(binding.var)
        returned = () if result is None else (result,) if isinstance(result, Var) else operands(result)
        self.returned: dict[Expr, None] = dict.fromkeys(self.resolve(value) for value in returned)

    @staticmethod
    def of(source: Dataflow | Function | Mapping[Var, Expr]) -> Dataflow:
        """Return the dataflow of a function, or of a mapping from variables to their values."""
        if isinstance(source, Dataflow):
            return source
        if isinstance(source, Function):
            return Dataflow(source.bindings, source.result, size_bounds(source))
        return Dataflow(Binding(var, value) for var, value in source.items())

    def is_alias(self, var: Var) -> bool:
        """Return True when the variable only renames another value."""
        return var in self._behind

    def resolve(self, expr: Expr) -> Expr:
        """Return the operand behind renamings: a Var that is a parameter or is bound to a computed value, or a
        Constant.
        """
        return self._behind.get(expr, expr)

    def value_of(self, expr: Expr) -> Expr:
        """Return the value bound to an operand; parameters, constants and other expressions are returned as is."""
        resolved = self._behind.get(expr, expr)
        return self.values.get(resolved, resolved)  # pyright: ignore  # what is no Var is no key either

    def users(self, var: Var) -> tuple[Var, ...]:
        """Return the variables bound to values that read `var`, in order; use as a result does not count."""
        return tuple(self._users.get(var, ()))

    def is_returned(self, var: Var) -> bool:
        """Return True when the function returns the variable."""
        return var in self.returned

    def is_needed_outside(self, var: Var, group: Collection[Var]) -> bool:
        """Return True when something that is not in `group` reads the variable, or the function returns it."""
        return var in self.returned or not all(user in group for user in self._users.get(var, ()))


def remove_aliases(function: Function) -> Function:
    """Return the function without bindings that only rename a value; the same object when it has none."""
    dataflow = Dataflow(function.bindings, function.result)
    kept = [binding for binding in function.bindings if not dataflow.is_alias(binding.var)]
    if len(kept) == len(function.bindings):
        return function
    bindings = [Binding(binding.var, _resolve(binding.value, dataflow)) for binding in kept]
    return Function(function.params, bindings, _resolve(function.result, dataflow), function.attrs)


def _resolve(value: Expr, dataflow: Dataflow) -> Expr:
    old = operands(value)
    new = [dataflow.resolve(operand) for operand in old]
    return value if all(a is b for a, b in zip(old, new, strict=True)) else with_operands(value, new)
