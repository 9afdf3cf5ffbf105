"""RunCodegen: regions become RuntimeModules, their calls become calls of external functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kernelyard.errors import PluginContractError, PluginTimeoutError, UnknownBackendError, describe
from kernelyard.ir import Call, Expr, ExternFunc, Function, GlobalVar, IRModule, Var, get_op
from kernelyard.ir.visitor import FunctionMutator, RewriteWith, callees, reachable_functions
from kernelyard.patterns.composite import CODEGEN, GLOBAL_SYMBOL
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.installed.distributions import package_line
from kernelyard.transform.interprocedural.inline_functions import inline_functions
from kernelyard.transform.partition.module_contract import check_module
from kernelyard.transform.partition.region import Codegen, Region, ViolationRecorder
from kernelyard.transform.partition.snapshot import Snapshot
from kernelyard.transform.pass_infra.pass_base import Pass, PassContext
from kernelyard.transform.pass_infra.select_entries import select_entries

log = logging.getLogger(__name__)

EXTERNAL_MODULES = "external_modules"


class Caller(Protocol):
    """Runs somebody else's code: `within_time` of `kernelyard.plugins.sandbox.guard`, or `call_directly`."""

    def __call__(self, what: str, action: Callable[[], RuntimeModule], items: int, /) -> RuntimeModule: ...


def call_directly(what: str, action: Callable[[], RuntimeModule], items: int) -> RuntimeModule:
    """Run a codegen for as long as it takes. See `Caller`."""
    return action()


class RunCodegen(Pass):
    """Compiles the regions of each backend together and calls them as `call_dps_packed(extern, *args)`.

    The RuntimeModules are added to the module attribute "external_modules", backends in order of first appearance.
    An accepted match is a promise: a codegen that fails is recorded, and its regions become plain ops again, unless
    `strict`. codegens: by backend; None: those of installed plugins. target_options: {backend: {option: value}}. call:
    runs a codegen, perhaps for a limited time; gets what it is about, for messages, what to call, and the number of
    composites.

    Raises: UnknownBackendError for a backend without codegen, BackendUnavailableError for an installed one that cannot
    be used; with `strict`, PluginContractError when one fails.
    """

    name = "RunCodegen"
    is_required = True

    def __init__(
        self,
        codegens: Mapping[str, Codegen] | None = None,
        target_options: Mapping[str, Mapping[str, Any]] | None = None,
        entry_functions: Sequence[str] | None = None,
        recorder: ViolationRecorder | None = None,
        strict: bool = False,
        call: Caller = call_directly,
    ) -> None:
        self.codegens = codegens
        self.target_options = target_options or {}
        self.entry_functions = entry_functions
        self.recorder = recorder
        self.strict = strict
        self.call = call

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        entries = list(select_entries(module, self.entry_functions))
        regions = _find_called_regions(module, entries)
        if not regions:
            return module
        compiled: list[RuntimeModule] = []
        refused: list[Region] = []
        for backend in dict.fromkeys(region.backend for region in regions.values()):
            runtime_module, failed = self._compile(backend, [r for r in regions.values() if r.backend == backend])
            compiled += [] if runtime_module is None else [runtime_module]
            refused += failed
        failing = set(refused)
        failed_names = {name for name, region in regions.items() if region in failing}
        symbols = {name: region.symbol for name, region in regions.items() if name not in failed_names}
        module = inline_functions(module, failed_names | _callees(module, failed_names), entries)
        module = _call_externals(module, symbols, entries)
        attached = (*module.attrs.get(EXTERNAL_MODULES, ()), *compiled)
        return _remove_uncalled_regions(module, set(regions)).with_attrs(**{EXTERNAL_MODULES: attached})

    def _compile(self, backend: str, regions: list[Region]) -> tuple[RuntimeModule | None, list[Region]]:
        """Return the backend's RuntimeModule, and the regions that it failed on."""
        codegen = self._codegen_of(backend)
        try:
            return self._generate(codegen, regions), []
        except Exception as error:  # a vendor's code
            if self.strict:
                raise _violation(backend, regions, error) from error
            log.warning("codegen of %s failed", backend, exc_info=True)
            # There is no other region, or asking again for each could take as long again.
            if len(regions) == 1 or isinstance(error, PluginTimeoutError):
                self._record(regions, error)
                return None, regions
        good = [region for region in regions if self._attempt(codegen, [region]) is not None]
        made = self._attempt(codegen, good) if good else None
        return made, [region for region in regions if made is None or region not in good]

    def _codegen_of(self, backend: str) -> Codegen:
        if self.codegens is None:
            from kernelyard.plugins.discovery.manager import (
                get_manager,  # scripts that hand codegens over need no plugins
            )

            return get_manager().get(backend, "backend").codegen
        if backend not in self.codegens:
            raise UnknownBackendError(
                f"there is no codegen for the backend {backend!r}",
                found=", ".join(sorted(self.codegens)) or "no codegens",
                hint=package_line(backend) or "give its codegen, or install the package that brings it",
            )
        return self.codegens[backend]

    def _attempt(self, codegen: Codegen, regions: list[Region]) -> RuntimeModule | None:
        """Their RuntimeModule; None where the codegen fails, which is recorded."""
        try:
            return self._generate(codegen, regions)
        except Exception as error:  # a vendor's code
            self._record(regions, error)
            return None

    def _record(self, regions: Sequence[Region], error: Exception) -> None:
        if self.recorder is not None:
            backend, symbols = regions[0].backend, [region.symbol for region in regions]
            self.recorder.record_violation(backend, symbols, _violation(backend, regions, error).message)

    def _generate(self, codegen: Codegen, regions: list[Region]) -> RuntimeModule:
        """Run a backend's codegen on regions of one module, and check the result.

        Raises: what its code raises, PluginContractError.
        """
        backend, module = regions[0].backend, regions[0].module
        options = self.target_options.get(backend, {})
        symbols = [region.symbol for region in regions]
        before = Snapshot(module)
        try:
            count = sum(len(region.composites()) for region in regions)
            return self.call(f"codegen of {backend}", lambda: check_module(codegen(regions, options), symbols), count)
        finally:
            if (changed := before.violation()) is not None:
                raise changed


def _violation(backend: str, regions: Sequence[Region], error: Exception) -> PluginContractError:
    return PluginContractError(
        f"{backend} accepted these ops but could not compile them: {describe(error)}",
        where=f"regions {', '.join(region.symbol for region in regions)}",
        found=getattr(error, "found", None),
        expected=getattr(error, "expected", None),
        hint="report this to the plugin's authors; exclude the backend to continue",
    )


def _find_called_regions(module: IRModule, entries: Sequence[str]) -> dict[str, Region]:
    """Return the regions that the entry functions call, by name, in order of first call."""
    found: dict[str, Region] = {}
    for entry in entries:
        for name in callees(module.entry_functions()[entry]):
            function = module[name]
            if isinstance(function, Function) and CODEGEN in function.attrs and name not in found:
                found[name] = Region(function.attrs.get(GLOBAL_SYMBOL, name), function.attrs[CODEGEN], function, module)
    return found


def _callees(module: IRModule, names: set[str]) -> set[str]:
    return {callee for name in names for callee in callees(module.graph_functions()[name])}


def _call_externals(module: IRModule, symbols: Mapping[str, str], entries: Sequence[str]) -> IRModule:
    """Replace calls of these regions by calls of external functions."""
    externals = {name: ExternFunc(symbol) for name, symbol in symbols.items()}

    def rewrite(_: FunctionMutator, var: Var, value: Expr) -> Expr:
        if isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.name in externals:
            return Call(get_op("call_dps_packed"), (externals[value.op.name], *value.args), type_=value.type)
        return value

    changed = {name: RewriteWith(rewrite).mutate(module.entry_functions()[name]) for name in entries}
    return module.with_functions(changed)


def _remove_uncalled_regions(module: IRModule, regions: set[str]) -> IRModule:
    """Return the module without regions, and composites of them, that nothing calls any more."""
    inner = regions | _callees(module, regions)
    others = tuple(name for name in module.functions if name not in inner)
    return module.without_functions(inner - reachable_functions(module, others))
