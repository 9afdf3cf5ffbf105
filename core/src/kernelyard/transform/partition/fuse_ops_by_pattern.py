"""FuseOpsByPattern: every place where a backend's pattern matches, and the backend says yes, becomes a composite."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from kernelyard.errors import PatternError, PerformanceWarning, describe, warn_caller
from kernelyard.ir import Binding, Call, Expr, Function, GlobalVar, IRModule, Op, TupleGetItem, Var
from kernelyard.ir.printer import attribute_text
from kernelyard.ir.size_bounds import bounds_attribute
from kernelyard.patterns.composite import (
    CODEGEN,
    COMPOSITE,
    RESERVED_ATTRIBUTES,
    Lifted,
    composite_of,
    op_names,
    structural_key,
)
from kernelyard.patterns.legality import check_legality
from kernelyard.patterns.matching.dataflow import remove_aliases
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.matching.matcher import Matcher
from kernelyard.patterns.matching.prefilter import Prefilter
from kernelyard.patterns.registry import (
    Accept,
    Decline,
    FusionPattern,
    MatchRecorder,
    PatternLike,
    as_fusion_pattern,
    backend_of,
)
from kernelyard.tir.primfunc import PrimFunc
from kernelyard.transform.pass_infra.fresh_names import FreshNames
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext, place_of
from kernelyard.transform.pass_infra.select_entries import select_entries

log = logging.getLogger(__name__)

CHECK_ERROR = "check-error"
MAX_WAYS = 8  # groups that one pattern may offer at one root
MAX_SOLUTIONS = 64  # equal ones included


@dataclass(frozen=True)
class FailedCheck(Decline):
    """No answer of the backend's: its check or its attrs_getter failed."""


class Group(NamedTuple):
    """An accepted match and the attributes of its composite."""

    pattern: FusionPattern
    match: Match
    attrs: Mapping[str, Any]


class FuseOpsByPattern(Pass):
    """Lifts accepted matches into composite functions (attribute "Composite" = the pattern's name).

    Roots are visited from the outputs to the inputs, so the longest chain is offered first; at each root the patterns
    are tried in the order given. A match is offered to its pattern's check once the core finds it legal; each refusal
    goes to the recorder with its reason. Functions that are composites or regions already are left as they are.

    bind_constants: False makes constants arguments of the composite. annotate_codegen: put each composite into a
    region of its own (attribute "Codegen" = backend). entry_functions: names to treat, with the branches and bodies of
    loops that they call; default all entry functions.
    Raises: PatternError for something that is no pattern. Warns: PerformanceWarning for a module that is legalized.
    """

    name = "FuseOpsByPattern"
    is_required = True

    def __init__(
        self,
        patterns: Sequence[PatternLike],
        bind_constants: bool = True,
        annotate_codegen: bool = False,
        entry_functions: Sequence[str] | None = None,
        recorder: MatchRecorder | None = None,
    ) -> None:
        self.patterns = tuple(as_fusion_pattern(pattern) for pattern in patterns)
        self.bind_constants = bind_constants
        self.annotate_codegen = annotate_codegen
        self.entry_functions = entry_functions
        self.recorder = recorder
        self._by_root, self._of_any_root = _index(self.patterns)

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        lifting = _Lifting(module, self.bind_constants, self.annotate_codegen)
        for name, given in select_entries(module, self.entry_functions).items():
            function = remove_aliases(given)
            groups = self._groups(function, name, module, context)
            if not groups:
                continue
            lifting.rewrite(name, function, groups)
            for root, group in groups.items():
                if self.recorder is not None:
                    self.recorder.record_match(group.pattern, group.match, name, lifting.composites[root])
        if not lifting.composites:
            self._warn_of_legalized(module)
        return lifting.finish()

    def _warn_of_legalized(self, module: IRModule) -> None:
        """Warn if operators that the patterns look for are loop-level functions already."""
        functions = [function for function in module.functions.values() if isinstance(function, PrimFunc)]
        hidden = sorted({op for function in functions for op in function.attrs.get("ops", ())} & set(self._by_root))
        if hidden:
            message = f"no pattern matches, and {', '.join(hidden)} are loop-level functions already"
            warn_caller(f"{message}: partition before legalize", PerformanceWarning)

    def _groups(self, function: Function, name: str, module: IRModule, context: PassContext) -> dict[Var, Group]:
        """Return the accepted matches by root, in order of the roots."""
        matcher = Matcher(function, module)
        prefilter = Prefilter(matcher.dataflow, [pattern.pattern for pattern in self.patterns])
        taken: set[Var] = set()
        groups: list[Group] = []
        for binding in reversed(function.bindings):
            if binding.var in taken or not isinstance(binding.value, (Call, TupleGetItem)):
                continue
            group = self._find_accepted_match(binding, matcher, prefilter, taken, name)
            if group is not None and context.allows("region", group.pattern.name, place_of(binding.var)):
                taken |= group.match.members
                groups.append(group)
        return {group.match.root: group for group in reversed(groups)}

    def _find_accepted_match(
        self, root: Binding, matcher: Matcher, prefilter: Prefilter, taken: set[Var], function: str
    ) -> Group | None:
        for pattern in self._candidates(root.value):
            if not prefilter.may_match(pattern.pattern, root.var):
                continue
            reported: set[tuple[str, Expr | None]] = set()
            for match in _ways(pattern, root.var, matcher):
                answer = _decide(pattern, match) if taken.isdisjoint(match.members) else None
                if isinstance(answer, Group):
                    return answer
                if answer is not None and (answer.code, answer.at) not in reported:
                    reported.add((answer.code, answer.at))
                    if self.recorder is not None:
                        self.recorder.record_decline(pattern, match, function, answer)
        return None

    def _candidates(self, value: Expr) -> tuple[FusionPattern, ...]:
        if isinstance(value, Call) and isinstance(value.op, Op):
            return self._by_root.get(value.op.name, self._of_any_root)
        return self._of_any_root


def _index(
    patterns: Sequence[FusionPattern],
) -> tuple[dict[str, tuple[FusionPattern, ...]], tuple[FusionPattern, ...]]:
    """Index the patterns by the op of their root, and return those with any root; both in order of priority."""
    ops = dict.fromkeys(op for p in patterns for op in sorted(p.pattern.root_ops or ()))
    of_any_root = tuple(p for p in patterns if p.pattern.root_ops is None)
    by_root = {op: tuple(p for p in patterns if p.pattern.root_ops is None or op in p.pattern.root_ops) for op in ops}
    return by_root, of_any_root


def _ways(pattern: FusionPattern, root: Var, matcher: Matcher) -> Iterator[Match]:
    """Different groups that the pattern makes at this root; at most MAX_WAYS."""
    seen: set[tuple[object, ...]] = set()
    for match in islice(matcher.matches(pattern.pattern, root), MAX_SOLUTIONS):
        key = (match.members, tuple(match.captures.items()))
        if match.bindings and key not in seen:
            seen.add(key)
            yield match
        if len(seen) == MAX_WAYS:
            return


def _decide(pattern: FusionPattern, match: Match) -> Group | Decline:
    illegal = check_legality(match)
    if illegal is not None:
        return illegal
    try:
        answer = Accept() if pattern.check is None else pattern.check(match)
        if isinstance(answer, Decline):
            return answer
        if not isinstance(answer, Accept):
            raise PatternError("a check must return Accept() or Decline(code, message)", found=repr(answer))
        return Group(pattern, match, _attributes(pattern, match))
    except Exception as error:  # a vendor's code: whatever it raises declines this match and nothing else
        log.warning("the check of pattern %s failed", pattern.name, exc_info=True)
        return FailedCheck(CHECK_ERROR, f"the check of {pattern.name} failed: {describe(error)}")


def _attributes(pattern: FusionPattern, match: Match) -> Mapping[str, Any]:
    attrs = {} if pattern.attrs_getter is None else dict(pattern.attrs_getter(match))
    for name, value in attrs.items():
        if name in RESERVED_ATTRIBUTES:
            raise PatternError(f"the attribute {name!r} of a composite is the core's", where=pattern.name)
        attribute_text(value)  # raises for values that a module could not be saved with
    return attrs


class _Lifting:
    """Collects what a run adds to the module; structurally equal functions are made once."""

    def __init__(self, module: IRModule, bind_constants: bool, annotate_codegen: bool) -> None:
        self.module = module
        self.bind_constants = bind_constants
        self.annotate_codegen = annotate_codegen
        self.composites: dict[Var, str] = {}
        self._added: dict[str, Function] = {}
        self._entries: dict[str, Function] = {}
        self._name_of: dict[tuple[object, ...], str] = {}
        self._names = FreshNames(module)

    def rewrite(self, name: str, function: Function, groups: Mapping[Var, Group]) -> None:
        """Replace the groups of one entry function by calls."""
        inside = {var for group in groups.values() for var in group.match.members}
        bindings: list[Binding] = []
        for binding in function.bindings:
            if binding.var in groups:
                bindings.append(Binding(binding.var, self._call(binding.var, groups[binding.var])))
            elif binding.var not in inside:
                bindings.append(binding)
        self._entries[name] = Function(function.params, bindings, function.result, function.attrs)

    def finish(self) -> IRModule:
        """Return the module with everything added; the same object when nothing was."""
        if not self._entries:
            return self.module
        return self.module.with_functions({**self._entries, **self._added})

    def _call(self, root: Var, group: Group) -> Call:
        lifted = composite_of(group.match, group.pattern.name, group.attrs, self.bind_constants)
        composite = self._composite(lifted.function)
        self.composites[root] = composite
        callee = self._region(lifted, composite, group.match) if self.annotate_codegen else composite
        return Call(GlobalVar(callee), lifted.arguments, type_=root.type)

    def _region(self, lifted: Lifted, composite: str, match: Match) -> str:
        function = lifted.function
        params = [Var(param.name, param.type, param.origin) for param in function.params]
        result = Var("result", function.result_type)
        call = Binding(result, Call(GlobalVar(composite), params, type_=function.result_type))
        backend = backend_of(function.attrs[COMPOSITE])
        attrs = {CODEGEN: backend, **bounds_attribute(match.dataflow.size_bounds)}
        region = Function(params, [call], result, attrs)
        key = structural_key(region)
        if key not in self._name_of:
            name = self._name_of[key] = self._names.numbered(backend)
            self._added[name] = region.with_attrs(global_symbol=name)
        return self._name_of[key]

    def _composite(self, function: Function) -> str:
        key = structural_key(function)
        if key not in self._name_of:
            wanted = "fused_" + "_".join(op_names(function)).replace(".", "_")
            name = self._name_of[key] = self._names.unique(wanted)
            self._added[name] = function
        return self._name_of[key]
