"""Rewrites a function wherever patterns match, until none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kernelyard.errors import PatternError
from kernelyard.ir.expr import Binding, Call, Expr, Function, TupleGetItem, Var
from kernelyard.ir.op import Op
from kernelyard.patterns.dataflow import Dataflow, without_aliases
from kernelyard.patterns.matcher import Match, Matcher
from kernelyard.patterns.pattern import Pattern

MAX_ROUNDS = 32

Emit: TypeAlias = Callable[[Expr], Var]
Replace: TypeAlias = Callable[[Match, Emit], "Expr | None"]


@dataclass(frozen=True, eq=False)
class RewriteRule:
    """What to put in place of a match.

    replace(match, emit) returns the new value of `match.root`, of the same type: a call, or an operand that is there
    already. `emit` binds intermediate values in front of it. None leaves the match as it is.
    """

    pattern: Pattern
    replace: Replace


def rewrite(function: Function, rules: Sequence[RewriteRule]) -> Function:
    """Apply rules, the first that fits at each place, again and again until none does.

    Values of a match that are used elsewhere too stay; what nothing uses any more goes. The same object is returned
    when nothing matches. Ops with effects are never part of a match that is rewritten.
    Raises: PatternError when a rule changes the type, or when the rules do not come to an end.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder, get_op
        >>> from kernelyard.patterns import is_op, wildcard
        >>> silu = is_op("multiply")((x := wildcard()).capture("x"), is_op("sigmoid")(x))
        >>> rule = RewriteRule(silu, lambda match, emit: Call(get_op("nn.silu"), [match["x"]]))
        >>> b = FunctionBuilder()
        >>> y = b.input("y", (2,))
        >>> f = rewrite(b.function(b.op("multiply", b.op("sigmoid", y), y)), [rule])
        >>> [binding.value.op_name for binding in f.bindings]
        ['nn.silu']
    """
    for _ in range(MAX_ROUNDS):
        rewritten = _rewrite_once(without_aliases(function), rules)
        if rewritten is None:
            return function
        function = rewritten
    raise PatternError(
        f"the rewrite rules still apply after {MAX_ROUNDS} rounds", hint="does a rule match what it makes?"
    )


def _rewrite_once(function: Function, rules: Sequence[RewriteRule]) -> Function | None:
    """One round, from the outputs to the inputs over matches that do not overlap; None when nothing applies."""
    matcher = Matcher(function)
    replaced: dict[Var, list[Binding]] = {}
    touched: set[Var] = set()
    for binding in reversed(function.bindings):
        if binding.var in touched or not isinstance(binding.value, (Call, TupleGetItem)):
            continue
        for rule in rules:
            match = matcher.match(rule.pattern, binding.var)
            new = None if match is None or _has_effects(match) else _replacement(match, rule)
            if match is not None and new is not None:
                replaced[binding.var] = new
                touched |= match.members
                break
    if not replaced:
        return None
    bindings = [new for old in function.bindings for new in replaced.get(old.var, [old])]
    rewritten = Function(function.params, bindings, function.result, function.attrs)
    return _without_dead(without_aliases(rewritten), touched)


def _replacement(match: Match, rule: RewriteRule) -> list[Binding] | None:
    """The bindings that take the root's place."""
    emitted: list[Binding] = []

    def emit(value: Expr) -> Var:
        emitted.append(Binding(Var(match.root.name, value.type, match.root.origin), value))
        return emitted[-1].var

    value = rule.replace(match, emit)
    if value is None:
        return None
    if value.type != match.root.type:
        raise PatternError(
            "a rewrite changes the type of a value",
            where=match.root.origin or repr(match.root),
            found=repr(value.type),
            expected=repr(match.root.type),
        )
    return [*emitted, Binding(match.root, value)]


def _has_effects(match: Match) -> bool:
    return any(isinstance(call.op, Op) and not call.op.pure for call in match.calls)


def _without_dead(function: Function, candidates: set[Var]) -> Function:
    """The function without those of `candidates` that nothing uses any more."""
    dataflow = Dataflow(function.bindings, function.result)
    dead: set[Var] = set()
    for binding in reversed(function.bindings):
        var = binding.var
        if var in candidates and not dataflow.is_returned(var) and all(user in dead for user in dataflow.users(var)):
            dead.add(var)
    kept = [binding for binding in function.bindings if binding.var not in dead]
    return Function(function.params, kept, function.result, function.attrs)
