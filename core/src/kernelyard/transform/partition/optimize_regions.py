"""OptimizeRegions: each backend rewrites its own regions before its codegen gets them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from kernelyard.errors import PassError, PluginContractError, describe
from kernelyard.ir import BaseFunction, Call, Expr, Function, FunctionMutator, GlobalVar, IRModule, Var, verify
from kernelyard.ir.visitor import RewriteWith, reachable_functions
from kernelyard.patterns.composite import CODEGEN, COMPOSITE, GLOBAL_SYMBOL
from kernelyard.transform.partition.region import ViolationRecorder
from kernelyard.transform.partition.snapshot import Snapshot
from kernelyard.transform.pass_infra.fresh_names import FreshNames
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext

log = logging.getLogger(__name__)

Optimize: TypeAlias = Callable[[IRModule], IRModule]


class OptimizeRegions(Pass):
    """Hands each region to its backend's optimizer, as a module of its own, and takes the region back.

    In that module the region is an ordinary function under its own name, beside the composites that it calls; the
    optimizer may rewrite both and add composites, and must keep the region's type and meaning. What it answers is
    verified. A failure is a vendor's: it is recorded, and the region stays as it was.
    optimizers: by backend. strict: raise instead.

    Raises: with `strict`, PluginContractError.
    """

    name = "optimize_regions"

    def __init__(
        self,
        optimizers: Mapping[str, Optimize],
        recorder: ViolationRecorder | None = None,
        strict: bool = False,
    ) -> None:
        self.optimizers = optimizers
        self.recorder = recorder
        self.strict = strict

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        names = FreshNames(module)
        after = module
        for name, region in module.graph_functions().items():
            optimize = self.optimizers.get(region.attrs.get(CODEGEN, ""))
            if optimize is not None:
                after = self._optimize(after, name, region, optimize, names)
        return after if after is module else _remove_unused(module, after)

    def _optimize(
        self, module: IRModule, name: str, region: Function, optimize: Optimize, names: FreshNames
    ) -> IRModule:
        alone = _alone(module, name, region)
        before = Snapshot(alone)
        try:
            answer = optimize(alone)
            if (changed := before.violation()) is not None:
                raise changed
            return module if answer is alone else _restore_region(module, name, region, alone, answer, names)
        except Exception as error:  # a vendor's code
            self._record_failure(region, name, before.violation() or error)
            return module

    def _record_failure(self, region: Function, name: str, error: Exception) -> None:
        backend, symbol = region.attrs[CODEGEN], region.attrs.get(GLOBAL_SYMBOL, name)
        violation = PluginContractError(
            f"the optimization by {backend} of the region {symbol} failed: {describe(error)}",
            found=getattr(error, "found", None),
            expected=getattr(error, "expected", None),
            hint="report this to the plugin's authors; exclude the backend to continue",
        )
        if self.strict:
            raise violation from error
        log.warning("the optimization by %s of its regions failed; they stay unchanged", backend, exc_info=True)
        if self.recorder is not None:
            self.recorder.record_violation(backend, (), violation.message)


def _alone(module: IRModule, name: str, region: Function) -> IRModule:
    """Return a module of one region, as an ordinary function, and what it calls."""
    attrs = {key: value for key, value in region.attrs.items() if key not in (CODEGEN, GLOBAL_SYMBOL)}
    called = reachable_functions(module, (name,)) - {name}
    others = {each: module[each] for each in module.functions if each in called}
    return IRModule({name: Function(region.params, region.bindings, region.result, attrs), **others}, module.attrs)


def _restore_region(
    module: IRModule, name: str, region: Function, alone: IRModule, answer: object, names: FreshNames
) -> IRModule:
    """Return the module with a region, and the functions that it calls, as an optimizer has left them.

    Other regions may call the same composites: what is no longer the same gets a name of its own.
    """
    if not isinstance(answer, IRModule):
        raise PassError("an optimizer returned no module", found=type(answer).__name__, expected="IRModule")
    verify(answer)
    after = answer.functions.get(name)
    if not isinstance(after, Function) or _signature(after) != _signature(region):
        found = _signature(after) if isinstance(after, Function) else f"no function @{name}"
        raise PassError("an optimizer changed the type of its region", found=found, expected=_signature(region))
    called = reachable_functions(answer, (name,)) - {name}
    strangers = [each for each in called if COMPOSITE not in answer[each].attrs]
    if strangers:
        raise PassError("a region calls composites alone", found=", ".join(sorted(strangers)))
    own = [each for each in answer.functions if each in called and alone.functions.get(each) is not answer[each]]
    renamed = {each: names.unique(each) for each in own}
    added = {new: _calling(answer[old], renamed) for old, new in renamed.items()}
    body = _calling(after, renamed)
    return module.with_functions({**added, name: Function(body.params, body.bindings, body.result, region.attrs)})


def _calling(function: BaseFunction, renamed: Mapping[str, str]) -> Function:
    """Return the function with calls of functions under their new names."""

    def rewrite(_: FunctionMutator, var: Var, value: Expr) -> Expr:
        if isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.name in renamed:
            return Call(GlobalVar(renamed[value.op.name]), value.args, value.attrs, value.type)
        return value

    assert isinstance(function, Function)
    return RewriteWith(rewrite).mutate(function)


def _remove_unused(before: IRModule, after: IRModule) -> IRModule:
    """Return the module without functions that are no longer called because regions were rewritten."""
    entries = tuple(after.entry_functions())
    left_over = reachable_functions(before, entries) - reachable_functions(after, entries)
    return after.without_functions(left_over & set(after.functions)) if left_over else after


def _signature(function: Function) -> str:
    """Return the types of the parameters and of the result, as text."""
    return f"({', '.join(repr(param.type) for param in function.params)}) -> {function.result_type!r}"
