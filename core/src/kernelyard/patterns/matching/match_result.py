"""A match: the group of values that a pattern matched, which checks and rewrites ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelyard.cached_property import cached_property
from kernelyard.dims import Bounds, Dim
from kernelyard.dims.interval import bounds_of
from kernelyard.errors import PatternError
from kernelyard.ir.expr import BaseFunction, Binding, Call, Constant, Expr, Function, GlobalVar, Var, operands
from kernelyard.patterns.language.pattern import Pattern
from kernelyard.patterns.matching.dataflow import Dataflow


@dataclass(frozen=True, eq=False)
class Match:
    """A place where a pattern matches.

    root: the variable bound to the last value of the group. captures: captured operands (Var or Constant) by name;
    names of alternatives not taken are absent. bindings: what moves into the group (calls, tuples and their items
    that the pattern names; wildcards and constants stay outside), in order. values: what each pattern that took
    part stands for. functions: of the module, by name.
    """

    root: Var
    captures: Mapping[str, Expr]
    bindings: tuple[Binding, ...]
    dataflow: Dataflow
    values: Mapping[Pattern, Expr]
    functions: Mapping[str, BaseFunction]

    @property
    def call(self) -> Call:
        """The root's call.

        Raises: PatternError when the root is a tuple or a tuple's item.
        """
        value = self.value_of(self.root)
        if not isinstance(value, Call):
            raise PatternError("the root of this match is no call", where=repr(self.root), found=type(value).__name__)
        return value

    def __getitem__(self, key: str | Pattern) -> Expr:
        """Return the captured operand of that name, or what a pattern that took part stands for."""
        return self.values[key] if isinstance(key, Pattern) else self.captures[key]

    def __contains__(self, key: object) -> bool:
        return key in self.captures or key in self.values

    def get(self, name: str) -> Expr | None:
        """Return the captured operand of that name, None when it took no part in this match."""
        return self.captures.get(name)

    def call_of(self, name: str) -> Call:
        """Return the call that a captured variable is bound to.

        Raises: PatternError when the capture is missing or is no call.
        """
        if name not in self.captures:
            raise PatternError(f"nothing was captured as {name!r}", expected=", ".join(self.captures))
        value = self.value_of(self.captures[name])
        if not isinstance(value, Call):
            raise PatternError(f"what was captured as {name!r} is no call", found=type(value).__name__)
        return value

    def bounds(self, dim: Dim) -> Bounds:
        """Return the least and the largest value that a size may have, None for the largest where it is open.

        Symbols have the bounds that `compile(bounds=...)` was given; the runtime refuses other sizes.
        """
        return bounds_of(dim, self.dataflow.size_bounds)

    def value_of(self, expr: Expr) -> Expr:
        """Return the value bound to an operand; parameters and constants are returned as is."""
        return self.dataflow.value_of(expr)

    def callee(self, value: Expr) -> Function | None:
        """Return the function of the module that a call calls, such as a composite; None for other values."""
        callee = value.op if isinstance(value, Call) else None
        function = self.functions.get(callee.name) if isinstance(callee, GlobalVar) else None
        return function if isinstance(function, Function) else None

    def users(self, var: Var) -> tuple[Var, ...]:
        """Return the variables whose values read `var`, in the whole function."""
        return self.dataflow.users(var)

    @cached_property
    def members(self) -> frozenset[Var]:
        """The variables that move into the group, the root included."""
        return frozenset(self.members_in_order)

    @cached_property
    def members_in_order(self) -> tuple[Var, ...]:
        """The variables that move into the group, in order; the root is the last."""
        return tuple(binding.var for binding in self.bindings)

    @cached_property
    def call_bindings(self) -> tuple[Binding, ...]:
        """The bindings of calls that move into the group, in order."""
        return tuple(binding for binding in self.bindings if isinstance(binding.value, Call))

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The calls that move into the group, in order."""
        return tuple(binding.value for binding in self.bindings if isinstance(binding.value, Call))

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops that move into the group, in order."""
        return tuple(call.op_name for call in self.calls)

    @cached_property
    def inputs(self) -> tuple[Expr, ...]:
        """Operands that the group reads from outside (Var or Constant), in order of first use."""
        found: dict[Expr, None] = {}
        for binding in self.bindings:
            for operand in operands(binding.value):
                resolved = self.dataflow.resolve(operand)
                if resolved not in self.members and isinstance(resolved, (Var, Constant)):
                    found.setdefault(resolved)
        return tuple(found)
