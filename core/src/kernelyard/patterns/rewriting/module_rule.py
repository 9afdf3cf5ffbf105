"""A rewrite rule that is a module: the functions "pattern" and "replacement"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelyard import dims
from kernelyard.dims import Dim, SymbolicDim
from kernelyard.errors import PatternError
from kernelyard.ir.expr import (
    BaseFunction,
    Call,
    Expr,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
    operands,
    with_operands,
)
from kernelyard.ir.module import IRModule
from kernelyard.ir.op import Op
from kernelyard.ir.types import TensorType, TupleType, Type, substitute
from kernelyard.patterns.language.constructors import is_expr, is_gv, is_op, is_tuple, wildcard
from kernelyard.patterns.language.pattern import Pattern
from kernelyard.patterns.language.pattern_context import PatternContext
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.rewriting.rewriter import GraphRewriteRule, Rule

PATTERN = "pattern"
REPLACEMENT = "replacement"

Symbols = dict[str, Dim]


@dataclass(frozen=True)
class ModuleRule:
    """The rule that `rewriter_from_module` reads from a module."""

    pattern: Function
    replacement: Function
    subroutines: Mapping[str, BaseFunction]

    @staticmethod
    def of(module: IRModule) -> ModuleRule:
        """Compile the rule. Raises: PatternError, see `rewriter_from_module`."""
        pattern, replacement = _function(module, PATTERN), _function(module, REPLACEMENT)
        _has_same_signature(pattern, replacement)
        others = {name: f for name, f in module.functions.items() if name not in (PATTERN, REPLACEMENT)}
        public = [name for name in others if name in module.public_functions()]
        if public:
            raise PatternError(
                "a rewriter must not add entry functions",
                found=", ".join(f"@{name}" for name in public),
                expected="loop-level functions, composites, regions or private functions",
            )
        return ModuleRule(pattern, replacement, others)

    def rule(self, names: Mapping[str, str]) -> Rule:
        """Return the rule; `names` says what the subroutines are called in the module that is rewritten."""
        stands_for = _patterns_of(self.pattern)
        result = self.pattern.result
        context = PatternContext()
        roots = [stands_for[field] for field in (operands(result) if isinstance(result, Tuple) else (result,))]
        for root in roots:
            context.add_pattern(root)

        def replace(match: Match) -> dict[Var, Expr] | None:
            symbols = _symbols(self.pattern, stands_for, match)
            if symbols is None:
                return None
            values = _instance(self.replacement, self.pattern, stands_for, match, symbols, names)
            return {match[root]: value for root, value in zip(roots, values, strict=True)}  # pyright: ignore

        return GraphRewriteRule(context, replace, whole=len(roots) > 1)


def _function(module: IRModule, name: str) -> Function:
    if name not in module:
        raise PatternError(f"a rewriter needs a function called {name!r}", expected=f"@{PATTERN} and @{REPLACEMENT}")
    function = module[name]
    if not isinstance(function, Function):
        raise PatternError(f"@{name} must be a graph-level function", found=type(function).__name__)
    return function


def _has_same_signature(pattern: Function, replacement: Function) -> None:
    for found, expected in (
        ([p.type for p in replacement.params], [p.type for p in pattern.params]),
        (replacement.result_type, pattern.result_type),
    ):
        if found != expected:
            raise PatternError(
                f"@{PATTERN} and @{REPLACEMENT} must have the same signature",
                found=repr(found),
                expected=repr(expected),
            )


def _patterns_of(function: Function) -> dict[Expr, Pattern]:
    """Return a pattern for each variable of a function."""
    found: dict[Expr, Pattern] = {param: wildcard() for param in function.params}

    def operand(expr: Expr) -> Pattern:
        return (
            found[expr] if isinstance(expr, Var) else is_gv(expr.name) if isinstance(expr, GlobalVar) else is_expr(expr)
        )

    for binding in function.bindings:
        value, parts = binding.value, [operand(o) for o in operands(binding.value)]
        if isinstance(value, Call):
            callee = is_op(value.op.name) if isinstance(value.op, Op) else is_gv(value.op.name)
            found[binding.var] = callee(*parts)
        elif isinstance(value, Tuple):
            found[binding.var] = is_tuple(*parts)
        else:
            found[binding.var] = parts[0][value.index] if isinstance(value, TupleGetItem) else parts[0]
    return found


def _symbols(pattern: Function, stands_for: Mapping[Expr, Pattern], match: Match) -> Symbols | None:
    """Solve the pattern's symbols in a match; None if types or attributes do not unify."""
    symbols: Symbols = {}
    variables = (*pattern.params, *(binding.var for binding in pattern.bindings))
    for var in variables:
        if not _unify(var.type, match[stands_for[var]].type, symbols):
            return None
    for binding in pattern.bindings:
        actual = match.value_of(match[stands_for[binding.var]])
        if isinstance(binding.value, Call) and isinstance(actual, Call):
            wanted = {name: _in_attribute(item, symbols) for name, item in binding.value.attrs.items()}
            if wanted != dict(actual.attrs):
                return None
    return symbols


def _unify(wanted: Type, actual: Type, symbols: Symbols) -> bool:
    if isinstance(wanted, TupleType) or isinstance(actual, TupleType):
        if not isinstance(wanted, TupleType) or not isinstance(actual, TupleType):
            return False
        pairs = zip(wanted.fields, actual.fields, strict=False)
        return len(wanted.fields) == len(actual.fields) and all(_unify(w, a, symbols) for w, a in pairs)
    if not isinstance(wanted, TensorType) or not isinstance(actual, TensorType):
        return wanted == actual
    if wanted.dtype != actual.dtype or wanted.rank != actual.rank:
        return False
    return all(_unify_dim(w, a, symbols) for w, a in zip(wanted.shape, actual.shape, strict=True))


def _unify_dim(wanted: Dim, actual: Dim, symbols: Symbols) -> bool:
    name = dims.as_symbol(wanted)
    if name is not None:
        return symbols.setdefault(name, actual) == actual
    return _in_attribute(wanted, symbols) == actual


def _in_attribute(value: Any, symbols: Symbols) -> Any:
    if isinstance(value, tuple):
        return tuple(_in_attribute(each, symbols) for each in value)
    return dims.substitute(value, symbols) if isinstance(value, SymbolicDim) else value


def _instance(
    replacement: Function,
    pattern: Function,
    stands_for: Mapping[Expr, Pattern],
    match: Match,
    symbols: Symbols,
    names: Mapping[str, str],
) -> tuple[Expr, ...]:
    """Return the replacement's results over what the parameters stand for."""
    new: dict[Expr, Expr] = {}
    for param, wanted in zip(replacement.params, pattern.params, strict=True):
        new[param] = match[stands_for[wanted]]

    def operand(expr: Expr) -> Expr:
        return GlobalVar(names.get(expr.name, expr.name)) if isinstance(expr, GlobalVar) else new.get(expr, expr)

    for binding in replacement.bindings:
        value, read = binding.value, [operand(o) for o in operands(binding.value)]
        if not isinstance(value, Call):
            new[binding.var] = with_operands(value, read)
            continue
        callee = value.op if isinstance(value.op, Op) else GlobalVar(names.get(value.op.name, value.op.name))
        attrs = {name: _in_attribute(item, symbols) for name, item in value.attrs.items()}
        new[binding.var] = Call(callee, read, attrs, substitute(value.type, symbols))
    result = replacement.result
    fields = operands(result) if isinstance(result, Tuple) else (result,)
    return tuple(new.get(field, field) for field in fields)
