"""AnnotateTarget: each call that a target can run is marked as that target's.

A mark is a region with one call in it (a function with the attribute "Codegen"): its parameters are where the target
begins, its results are where it ends. So a marked module is an ordinary module, which can be verified, printed and run.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.ir import Binding, Call, Constant, Expr, Function, GlobalVar, IRModule, Op, Var, operands
from kernelyard.patterns.composite import CODEGEN, GLOBAL_SYMBOL, lift, structural_key
from kernelyard.patterns.matching.dataflow import Dataflow, remove_aliases
from kernelyard.patterns.matching.matcher import Matcher
from kernelyard.patterns.op_rules import NO_RULE, ask_op_rule, op_rule_pattern
from kernelyard.patterns.registry import Accept, MatchRecorder
from kernelyard.transform.partition.merge_composite_functions import composite_backend
from kernelyard.transform.pass_infra.fresh_names import FreshNames
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext


class AnnotateTarget(Pass):
    """Give each call to the first of `targets` that takes it, in the order given.

    A composite belongs to the backend of its pattern; for an operator the targets' single-op rules are asked
    (`kernelyard.patterns.op_rules`), and what they decline goes to the recorder. What no target takes stays as
    it is (Relay calls that "default"). Operators with effects, and those without operands, stay too; tuples and their
    items have no target of their own and go with their producer when regions are merged. Calls that are marked already
    keep their mark, so that the pass may be run for one backend after another.
    """

    name = "AnnotateTarget"

    def __init__(self, targets: str | Sequence[str], recorder: MatchRecorder | None = None) -> None:
        self.targets = (targets,) if isinstance(targets, str) else tuple(targets)
        self.recorder = recorder

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        marking = _Marking(module)
        changed: dict[str, Function] = {}
        for name, given in module.entry_functions().items():
            function = remove_aliases(given)
            dataflow = Dataflow(function.bindings, function.result)
            chosen = [self._target(binding, dataflow, module, name) for binding in function.bindings]
            if any(chosen):
                pairs = zip(function.bindings, chosen, strict=True)
                bindings = [marking.mark(binding, target) if target else binding for binding, target in pairs]
                changed[name] = Function(function.params, bindings, function.result, function.attrs)
        return module.with_functions({**changed, **marking.added}) if changed else module

    def _target(self, binding: Binding, dataflow: Dataflow, module: IRModule, function: str) -> str | None:
        value = binding.value
        if not isinstance(value, Call):
            return None
        if isinstance(value.op, GlobalVar):
            backend = composite_backend(value, module)
            return backend if backend in self.targets else None
        if not value.op.pure or value.op.opaque_type or not value.args:
            return None
        return next(
            (target for target in self.targets if self._accepts(target, binding, value, dataflow, function)), None
        )

    def _accepts(self, target: str, binding: Binding, call: Call, dataflow: Dataflow, function: str) -> bool:
        answer = ask_op_rule(call, target)
        if isinstance(answer, Accept):
            return True
        if self.recorder is not None and answer is not NO_RULE:
            pattern = op_rule_pattern(call.op_name, target)
            match = Matcher(dataflow).match(pattern.pattern, binding.var)
            assert match is not None
            self.recorder.record_decline(pattern, match, function, answer)
        return False


class _Marking:
    """The regions that a run adds; equal ones are made once."""

    def __init__(self, module: IRModule) -> None:
        self.added: dict[str, Function] = {}
        self._names = FreshNames(module)
        self._name_of: dict[tuple[object, ...], str] = {}

    def mark(self, binding: Binding, target: str) -> Binding:
        """Return the binding as a call of a region with nothing else in it."""
        inputs: dict[Expr, None] = dict.fromkeys(o for o in operands(binding.value) if isinstance(o, (Var, Constant)))
        lifted = lift([binding], tuple(inputs), [binding.var], {CODEGEN: target})
        key = structural_key(lifted.function)
        if key not in self._name_of:
            name = self._name_of[key] = self._names.numbered(target)
            self.added[name] = lifted.function.with_attrs(**{GLOBAL_SYMBOL: name})
        return Binding(binding.var, Call(GlobalVar(self._name_of[key]), lifted.arguments, type_=binding.var.type))


def region_backend(value: Expr, module: IRModule) -> str | None:
    """Return the backend of the region that a value calls; None for anything else."""
    if not isinstance(value, Call) or isinstance(value.op, Op) or value.op.name not in module:
        return None
    return module[value.op.name].attrs.get(CODEGEN)
