"""RunCodegen: regions become RuntimeModules, their calls become calls of external functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from kernelyard.errors import KernelyardError, PassError, PluginContractError, UnknownBackendError
from kernelyard.ir import Binding, Call, Expr, ExternFunc, Function, GlobalVar, IRModule, Type, Var, get_op
from kernelyard.ir.visitor import FunctionMutator, RewriteWith, callees, reachable_functions
from kernelyard.patterns.composite import CODEGEN, COMPOSITE, GLOBAL_SYMBOL, op_names
from kernelyard.runtime.module import RuntimeModule
from kernelyard.transform.inline_functions import inline_functions
from kernelyard.transform.pass_base import Pass, PassContext

log = logging.getLogger(__name__)

EXTERNAL_MODULES = "external_modules"


@dataclass(frozen=True, eq=False)
class Region:
    """What a backend's codegen receives: a function of composites, and the module in which these are.

    symbol: the name that the RuntimeModule must answer to.
    """

    symbol: str
    backend: str
    function: Function
    module: IRModule

    @property
    def inputs(self) -> tuple[Var, ...]:
        """The parameters."""
        return self.function.params

    @property
    def output_type(self) -> Type:
        """The type of the result, a tuple when there are several."""
        return self.function.result_type

    def composite(self, call: Call) -> Function:
        """The composite that a call in the region names.

        Raises: PassError when the callee is no composite.
        """
        function = self.module[call.op_name]
        if not isinstance(function, Function) or COMPOSITE not in function.attrs:
            raise PassError(f"@{call.op_name} is no composite function", where=f"region {self.symbol}")
        return function

    def composites(self) -> tuple[tuple[Binding, Function], ...]:
        """The calls of composites, in order, each with the composite."""
        calls = [b for b in self.function.bindings if isinstance(b.value, Call) and isinstance(b.value.op, GlobalVar)]
        return tuple((binding, self.composite(binding.value)) for binding in calls)  # pyright: ignore[reportArgumentType]

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops in the region, in order."""
        return tuple(op for _, composite in self.composites() for op in op_names(composite))


Codegen: TypeAlias = Callable[[list[Region], Mapping[str, Any]], RuntimeModule]


class ViolationRecorder(Protocol):
    """Is told when a backend accepted what its codegen cannot do."""

    def violated(self, backend: str, symbols: Sequence[str], message: str) -> None:
        """The regions `symbols` of `backend` go back to the module's own ops."""
        ...


class RunCodegen(Pass):
    """Compiles the regions of each backend together and calls them as `call_dps_packed(extern, *args)`.

    The RuntimeModules are added to the module attribute "external_modules", backends in order of first appearance.
    An accepted match is a promise: a codegen that fails is recorded, and its regions become plain ops again, unless
    `strict`. codegens: by backend. target_options: {backend: {option: value}}.

    Raises: UnknownBackendError for a backend without codegen; with `strict`, PluginContractError when one fails.
    """

    name = "RunCodegen"

    def __init__(
        self,
        codegens: Mapping[str, Codegen],
        target_options: Mapping[str, Mapping[str, Any]] | None = None,
        entry_functions: Sequence[str] | None = None,
        recorder: ViolationRecorder | None = None,
        strict: bool = False,
    ) -> None:
        self.codegens = codegens
        self.target_options = target_options or {}
        self.entry_functions = entry_functions
        self.recorder = recorder
        self.strict = strict

    def run(self, module: IRModule, context: PassContext) -> IRModule:
        wanted = self.entry_functions
        entries = [name for name in module.entry_functions() if wanted is None or name in wanted]
        regions = _called_regions(module, entries)
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
        return _without_called(module, set(regions)).with_attrs(**{EXTERNAL_MODULES: attached})

    def _compile(self, backend: str, regions: list[Region]) -> tuple[RuntimeModule | None, list[Region]]:
        """The backend's RuntimeModule, and the regions that it failed on."""
        codegen = self.codegens.get(backend)
        if codegen is None:
            raise UnknownBackendError(
                f"there is no codegen for the backend {backend!r}",
                found=", ".join(sorted(self.codegens)) or "no codegens",
                hint=f"pip install kernelyard-{backend}",
            )
        options = self.target_options.get(backend, {})
        try:
            return _generate(codegen, backend, regions, options), []
        except Exception as error:  # a vendor's code
            if self.strict:
                raise _violation(backend, regions, error) from error
            log.warning("codegen of %s failed", backend, exc_info=True)
        good = [region for region in regions if self._succeeds(codegen, [region], options)]
        if good and self._succeeds(codegen, good, options):
            return _generate(codegen, backend, good, options), [region for region in regions if region not in good]
        return None, regions

    def _succeeds(self, codegen: Codegen, regions: list[Region], options: Mapping[str, Any]) -> bool:
        backend = regions[0].backend
        try:
            _generate(codegen, backend, regions, options)
        except Exception as error:  # a vendor's code
            if self.recorder is not None:
                message = _violation(backend, regions, error).message
                self.recorder.violated(backend, [region.symbol for region in regions], message)
            return False
        return True


def _generate(codegen: Codegen, backend: str, regions: list[Region], options: Mapping[str, Any]) -> RuntimeModule:
    result = codegen(regions, options)
    if not isinstance(result, RuntimeModule):
        raise PluginContractError(
            f"the codegen of {backend} returned no RuntimeModule", found=type(result).__name__, expected="RuntimeModule"
        )
    symbols = set(result.symbols())
    missing = [region.symbol for region in regions if region.symbol not in symbols]
    if missing:
        raise PluginContractError(
            f"the RuntimeModule of {backend} lacks regions that it was asked for",
            found=", ".join(result.symbols()) or "no functions",
            expected=", ".join(missing),
        )
    return result


def _violation(backend: str, regions: Sequence[Region], error: Exception) -> PluginContractError:
    reason = error.message if isinstance(error, KernelyardError) else repr(error)
    return PluginContractError(
        f"{backend} accepted these ops but its codegen failed: {reason}",
        where=f"regions {', '.join(region.symbol for region in regions)}",
        found=getattr(error, "found", None),
        expected=getattr(error, "expected", None),
        hint="report this to the plugin's authors; leave the backend out to go on",
    )


def _called_regions(module: IRModule, entries: Sequence[str]) -> dict[str, Region]:
    """Regions that the entry functions call, by the function's name, in order of first call."""
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
    """Calls of these regions become calls of external functions."""
    externals = {name: ExternFunc(symbol) for name, symbol in symbols.items()}

    def rewrite(_: FunctionMutator, var: Var, value: Expr) -> Expr:
        if isinstance(value, Call) and isinstance(value.op, GlobalVar) and value.op.name in externals:
            return Call(get_op("call_dps_packed"), (externals[value.op.name], *value.args), type_=value.type)
        return value

    changed = {name: RewriteWith(rewrite).mutate(module.entry_functions()[name]) for name in entries}
    return module.with_functions(changed)


def _without_called(module: IRModule, regions: set[str]) -> IRModule:
    """The module without regions, and composites of them, that nothing calls any more."""
    inner = regions | _callees(module, regions)
    others = tuple(name for name in module.functions if name not in inner)
    return module.without_functions(inner - reachable_functions(module, others))
