"""Rewrites a function wherever patterns match, until none does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from kernelyard.errors import PatternError
from kernelyard.ir.expr import Binding, Call, Expr, Function, TupleGetItem, Var, operands
from kernelyard.ir.module import IRModule
from kernelyard.ir.purity import Purity
from kernelyard.patterns.language.pattern import Pattern
from kernelyard.patterns.language.pattern_context import PatternContext
from kernelyard.patterns.legality import leaking_intermediates
from kernelyard.patterns.matching.dataflow import remove_aliases
from kernelyard.patterns.matching.equal_values import merge_equal_values
from kernelyard.patterns.matching.feasibility import is_same_value
from kernelyard.patterns.matching.graph_matcher import graph_matches
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.matching.matcher import Matcher
from kernelyard.patterns.rewriting.splice import Emit, flatten, remove_dead, splice

MAX_ROUNDS = 32  # of a short function
MAX_ROUNDS_OF_A_LONG_ONE = 512
MAX_WAYS = 64  # ways to match one pattern at one root that a rule is asked about
MAX_PLACES = 4096  # matches of one graph pattern in one round

Replace: TypeAlias = Callable[[Match, Emit], "Expr | None"]
ReplaceGraph: TypeAlias = Callable[[Match], "Mapping[Var, Expr] | None"]


@dataclass(frozen=True, eq=False)
class RewriteRule:
    """Rewrite rule: a pattern, and the replacement of a match.

    replace(match, emit) returns the new value of `match.root`, of the same type: a call, whose operands may be calls
    in turn, or an operand that is there already. `emit` binds intermediate values in front of it. None, or the value
    that is there already, leaves the match as it is; other ways to match the same value are tried then.
    """

    pattern: Pattern
    replace: Replace


@dataclass(frozen=True, eq=False)
class GraphRewriteRule:
    """Rewrite rule of a graph of patterns, which may have several roots.

    replace(match) returns new values by variable; None or no values leave the match as it is.
    whole: only where nothing but the replaced values is used outside the match, so that nothing is computed twice.
    """

    context: PatternContext
    replace: ReplaceGraph
    whole: bool = False


Rule: TypeAlias = "RewriteRule | GraphRewriteRule"


def rewrite(function: Function, rules: Sequence[Rule], module: IRModule | None = None) -> Function:
    """Apply rules again and again until none does; a rule sees what the rules before it have left alone.

    Values of a match that are used elsewhere too stay; what nothing uses any more goes. After a round equal values
    become one, so that the next round sees them as one. The same object is returned when nothing matches. A match with
    a call that has effects, or with one between its values, is not rewritten.
    module: where functions are looked up; a call of one that is not known counts as having effects.
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
    rounds = max(MAX_ROUNDS, min(len(function.bindings), MAX_ROUNDS_OF_A_LONG_ONE))  # a chain may need one per link
    for _ in range(rounds):
        rewritten = _Round(remove_aliases(function), module).run(rules)
        if rewritten is None:
            return function
        function = rewritten
    raise PatternError(f"the rewrite rules still apply after {rounds} rounds", hint="does a rule match its own result?")


def rewrite_call(pattern: Pattern, rewriter: Callable[[Call, Match], Expr], function: Function) -> Function:
    """Rewrite each call that `pattern` matches, to a fixpoint.

    rewriter(call, matchings) returns the new value; `matchings` gives what a part of the pattern, or a name, stands
    for. To refuse it returns the call. Raises: as `rewrite`.
    """

    def replace(match: Match, emit: Emit) -> Expr | None:
        value = match.value_of(match.root)
        return rewriter(value, match) if isinstance(value, Call) else None

    return rewrite(function, [RewriteRule(pattern, replace)])


def rewrite_bindings(
    context: PatternContext,
    rewriter: Callable[[Match, Mapping[Var, Expr]], Mapping[Var, Expr]],
    function: Function,
) -> Function:
    """Rewrite each place where the graph of patterns matches, to a fixpoint, and sort the bindings topologically.

    rewriter(matchings, values) returns new values by variable; `values` are those of all variables as they stand.
    To refuse it returns nothing. Raises: as `rewrite`.
    """
    return rewrite(function, [GraphRewriteRule(context, lambda match: rewriter(match, match.dataflow.values))])


class _Round:
    """One round, from the outputs to the inputs, over matches that do not overlap."""

    def __init__(self, function: Function, module: IRModule | None) -> None:
        self.function = function
        self.module = module
        self.matcher = Matcher(function, module)
        self.purity = Purity(module or IRModule())
        self.replaced: dict[Var, list[Binding]] = {}
        self.touched: set[Var] = set()
        self.in_order = True
        self.effects = [i for i, binding in enumerate(function.bindings) if not self.purity.is_pure(binding.value)]

    def run(self, rules: Sequence[Rule]) -> Function | None:
        """Return the rewritten function; None when nothing applies."""
        for rule in rules:
            if isinstance(rule, RewriteRule):
                self._apply(rule)
            else:
                self._apply_graph(rule)
        if not self.replaced:
            return None
        rewritten = splice(self.function, self.replaced, self.purity)
        assert rewritten is not None, "each replacement was tried"
        return merge_equal_values(remove_dead(rewritten, self.touched), self.purity)

    def _apply(self, rule: RewriteRule) -> None:
        others = frozenset(self.touched)
        for binding in reversed(self.function.bindings):
            if binding.var in self.touched or not isinstance(binding.value, (Call, TupleGetItem)):
                continue
            for match in islice(self.matcher.matches(rule.pattern, binding.var), MAX_WAYS):
                is_free = others.isdisjoint(match.members) and not self._crosses_effect(match)
                new = self._replacement(match, rule) if is_free else None
                if new is not None:
                    self.replaced[binding.var] = new
                    self.touched |= match.members | {binding.var}
                    break

    def _replacement(self, match: Match, rule: RewriteRule) -> list[Binding] | None:
        """Return the bindings that take the root's place."""
        emitted: list[Binding] = []
        emit = _emitter(match.root, emitted)
        value = rule.replace(match, emit)
        if value is None or _is_the_same(value, match.value_of(match.root)):
            return None
        return [*emitted, *_bind_parts(match.root, value)]

    def _apply_graph(self, rule: GraphRewriteRule) -> None:
        for match in islice(graph_matches(rule.context, self.matcher.dataflow, self.module), MAX_PLACES):
            if not self.touched.isdisjoint(match.members) or self._crosses_effect(match):
                continue
            new = self._graph_replacement(match, rule)
            if new and self._is_acyclic(new):
                self.replaced |= new
                self.touched |= match.members | set(new)

    def _is_acyclic(self, new: Mapping[Var, Sequence[Binding]]) -> bool:
        """Return True when the values may be replaced, together with those that are, without one depending on itself.

        As long as everything reads only what was bound before it, that is certain; else the bindings are sorted.
        """
        position = self.matcher.dataflow.position
        read = {o for bindings in new.values() for binding in bindings for o in operands(binding.value)}
        latest = max((position[o] for o in read if isinstance(o, Var) and o in position), default=-1)
        in_order = latest < min(position[var] for var in new)
        if in_order and self.in_order:
            return True
        if splice(self.function, {**self.replaced, **new}, self.purity) is None:
            return False
        self.in_order &= in_order
        return True

    def _graph_replacement(self, match: Match, rule: GraphRewriteRule) -> dict[Var, list[Binding]]:
        values = {
            var: value
            for var, value in (rule.replace(match) or {}).items()
            if not _is_the_same(value, match.value_of(var))
        }
        leaking = set(leaking_intermediates(match)) | {match.root} if rule.whole else set()
        if not leaking <= set(values):
            return {}
        known: dict[Expr, Expr] = {}
        return {var: _bind_parts(var, value, known) for var, value in values.items()}

    def _crosses_effect(self, match: Match) -> bool:
        """Return True when an op with effects is in the match or between its first and its last value."""
        if not self.effects:
            return False
        positions = [self.matcher.dataflow.position[var] for var in (*match.members, match.root)]
        first = bisect_left(self.effects, min(positions))
        return first < len(self.effects) and self.effects[first] <= max(positions)


def _emitter(root: Var, emitted: list[Binding]) -> Emit:
    def emit(value: Expr) -> Var:
        emitted.append(Binding(Var(root.name, value.type, root.origin), value))
        return emitted[-1].var

    return emit


def _bind_parts(root: Var, value: Expr, known: dict[Expr, Expr] | None = None) -> list[Binding]:
    """Return the bindings of `value` and of its parts, the last of which is the root's.

    Raises: PatternError when the type is not the root's.
    """
    if value.type != root.type:
        raise PatternError(
            "a rewrite changes the type of a value",
            where=root.origin or repr(root),
            found=repr(value.type),
            expected=repr(root.type),
        )
    emitted: list[Binding] = []
    flat = flatten(value, _emitter(root, emitted), known)
    return [*emitted, Binding(root, flat)]


def _is_the_same(new: Expr, old: Expr) -> bool:
    """Return True when a replacement is the value that is there already."""
    if new is old:
        return True
    if not isinstance(new, Call) or not isinstance(old, Call) or new.op_name != old.op_name:
        return False
    if dict(new.attrs) != dict(old.attrs) or len(new.args) != len(old.args):
        return False
    return all(is_same_value(a, b) for a, b in zip(operands(new), operands(old), strict=True))
