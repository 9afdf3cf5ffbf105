"""Rewriters written as a pair of functions: what to find, and what to put there.

Example:
    >>> from kernelyard.patterns import op, rewriter_of
    >>> silu = rewriter_of(lambda x: op.multiply(x, op.sigmoid(x)), lambda x: op.nn.silu(x))
    >>> from kernelyard.ir import FunctionBuilder
    >>> b = FunctionBuilder()
    >>> x = b.input("x", (2,))
    >>> f = silu(b.function(b.op("multiply", x, b.op("sigmoid", x))))
    >>> [binding.value.op_name for binding in f.bindings]
    ['nn.silu']
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kernelyard.errors import PatternError
from kernelyard.ir.expr import BaseFunction, Binding, Call, Expr, Function, GlobalVar, Var, operands, with_operands
from kernelyard.ir.module import IRModule
from kernelyard.ir.visitor import reachable_functions
from kernelyard.patterns.language.pattern import Pattern
from kernelyard.patterns.language.pattern_context import PatternContext
from kernelyard.patterns.language.pattern_parts import list_captures
from kernelyard.patterns.language.traced import Traced, trace
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.rewriting.module_rule import ModuleRule
from kernelyard.patterns.rewriting.rewriter import GraphRewriteRule, RewriteRule, Rule, rewrite

Target = TypeVar("Target", Function, IRModule)


class RuleSource(Protocol):
    """Source of a rewrite rule and of the functions that its replacement calls."""

    @property
    def subroutines(self) -> Mapping[str, BaseFunction]:
        """Functions by name that go along where they are used."""
        ...

    def rule(self, names: Mapping[str, str]) -> Rule:
        """Return the rule; `names` says what the subroutines are called in the module that is rewritten."""
        ...


@dataclass(frozen=True)
class Rewriter:
    """Rules to apply to a function, or to all entry functions of a module, until none applies.

    `a | b` applies both: in each round `b` sees what `a` has left alone. As a pass:
    `module_pass("name")(lambda module, context: rewriter(module))`.
    """

    sources: tuple[RuleSource, ...]

    def __or__(self, other: Rewriter) -> Rewriter:
        return Rewriter((*self.sources, *other.sources))

    def __call__(self, target: Target) -> Target:
        """Return the rewritten function or module; the same object when nothing applies.

        Raises: PatternError, as `rewrite`, and for a function whose replacement would need functions of a module.
        """
        if isinstance(target, Function):
            return rewrite(target, self._rules_for_function())
        return self._module(target)

    def _rules_for_function(self) -> list[Rule]:
        for source in self.sources:
            if source.subroutines:
                raise PatternError(
                    "the replacement calls functions, which only a module can hold",
                    found=", ".join(source.subroutines),
                    hint="apply the rewriter to the module",
                )
        return [source.rule({}) for source in self.sources]

    def _module(self, module: IRModule) -> IRModule:
        rules, added = self._rules(module)
        changed: dict[str, BaseFunction] = {}
        for name, function in module.entry_functions().items():
            new = rewrite(function, rules, module)
            if new is not function:
                changed[name] = new
        if not changed:
            return module
        rewritten = module.with_functions({**changed, **added})
        unused = set(added) - set(module) - reachable_functions(rewritten, tuple(changed))
        return rewritten.without_functions(unused)

    def _rules(self, module: IRModule) -> tuple[list[Rule], dict[str, BaseFunction]]:
        """Return the rules, and their subroutines under names that are free in the module."""
        rules: list[Rule] = []
        added: dict[str, BaseFunction] = {}
        for source in self.sources:
            names: dict[str, str] = {}
            for name, function in source.subroutines.items():
                is_there = name in module and module[name] is function
                names[name] = name if is_there else module.fresh_name(name, set(added))
            for name, function in source.subroutines.items():
                added[names[name]] = _with_callees(function, names)
            rules.append(source.rule(names))
        return rules, added


def _with_callees(function: BaseFunction, names: Mapping[str, str]) -> BaseFunction:
    """Return a subroutine that calls other subroutines by their new names; the same object when no name changes."""
    if not isinstance(function, Function) or all(old == new for old, new in names.items()):
        return function

    def rename(expr: Expr) -> Expr:
        return GlobalVar(names[expr.name]) if isinstance(expr, GlobalVar) and expr.name in names else expr

    bindings = []
    for binding in function.bindings:
        value = with_operands(binding.value, [rename(operand) for operand in operands(binding.value)])
        if isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.name in names:
            value = Call(GlobalVar(names[value.op.name]), value.args, value.attrs, value.type)
        bindings.append(Binding(binding.var, value))
    return Function(function.params, bindings, function.result, function.attrs)


@dataclass(frozen=True)
class _PairRule:
    """A rule written as two Python functions."""

    pattern: Traced
    replacement: Callable[..., Any]
    names: tuple[str, ...]
    subroutines: Mapping[str, BaseFunction]

    def rule(self, names: Mapping[str, str]) -> Rule:
        if isinstance(self.pattern, Pattern):
            return RewriteRule(self.pattern, lambda match, emit: self._replace(match))
        roots = self.pattern
        context = PatternContext()
        for root in roots:
            context.add_pattern(root)
        return GraphRewriteRule(context, lambda match: self._replace_all(match, roots), whole=True)

    def _replace(self, match: Match) -> Any:
        return self.replacement(**{name: match if name == "match" else match.get(name) for name in self.names})

    def _replace_all(self, match: Match, roots: Sequence[Pattern]) -> dict[Var, Expr] | None:
        values = self._replace(match)
        if values is None:
            return None
        if not isinstance(values, tuple) or len(values) != len(roots):
            raise PatternError("a replacement must return as many values as its pattern", found=repr(values))
        return {match[root]: value for root, value in zip(roots, values, strict=True)}  # pyright: ignore


def rewriter_of(pattern: Callable[..., Any], replacement: Callable[..., Any]) -> Rewriter:
    """Return a rewriter of a pair of functions over `op`.

    pattern: traced (see `trace`); its parameters are captures. replacement: is given captures by name (None for one
    that took no part) and returns the new value, or None to leave the match; a parameter called "match" is the Match.
    When the pattern returns several values they are found wherever they are, and replaced by as many, provided that
    nothing has to be computed twice.
    Raises: PatternError for a parameter of `replacement` that the pattern does not capture.
    """
    traced = trace(pattern)
    roots = traced if isinstance(traced, tuple) else (traced,)
    captured = dict.fromkeys(name for root in roots for name in list_captures(root))
    names = tuple(inspect.signature(replacement).parameters)
    for name in names:
        if name not in captured and name != "match":
            raise PatternError(
                f"the replacement's parameter {name!r} is no capture of the pattern", expected=", ".join(captured)
            )
    return Rewriter((_PairRule(traced, replacement, names, {}),))


def rewriter_from_module(module: IRModule) -> Rewriter:
    """Return a rewriter of the functions "pattern" and "replacement" of a module, which must have the same signature.

    Symbols of the pattern's parameters stand for any size, the same one throughout. Other functions are subroutines
    of the replacement (loop-level functions, composites, regions, private functions such as branches) and go along
    where they are used.
    Raises: PatternError when one of the two is missing or no graph-level function, when signatures differ, or when
    another function could be called from outside.
    """
    return Rewriter((ModuleRule.of(module),))
