"""compile(): a model becomes an Executable, in phases that read like the list in `docs/architecture.md`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

import kernelyard.ops  # noqa: F401  the vocabulary must be declared before a model is read
from kernelyard.collector import collector_paused
from kernelyard.dims import Bounds
from kernelyard.driver.lowering.fallbacks import lower_fallbacks, remove_fallbacks
from kernelyard.driver.lowering.generate import Generated, generate, plan_kernels
from kernelyard.driver.lowering.lower import Lowered, check_names, lower
from kernelyard.driver.lowering.lower_vm_function import lower_vm_function, vm_function_names
from kernelyard.driver.lowering.offload import offload
from kernelyard.driver.refused_sizes import compiler_for_refused_sizes
from kernelyard.driver.session.precision import DEFAULT
from kernelyard.driver.session.requirements import check_coverage
from kernelyard.driver.session.session import CompileSession, Options, open_session
from kernelyard.errors import PerformanceWarning, PluginContractError, UnsupportedOperatorError, warn_caller
from kernelyard.ir import Call, IRModule
from kernelyard.ir.hash_ahead import hash_ahead
from kernelyard.ir.scopes import introduces_symbols
from kernelyard.ops.size_checks import size_checks
from kernelyard.placement.build_report import add_fallbacks
from kernelyard.placement.partition import partition
from kernelyard.runtime.abi.memory import HEAP_TRIMMER
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.execute.executable import Executable
from kernelyard.runtime.program.program import SizeCheck
from kernelyard.runtime.report import Report
from kernelyard.target import Target
from kernelyard.transform.compile_pipeline import OFFLOAD, PRECISION, CompilePipeline
from kernelyard.transform.partition.run_codegen import EXTERNAL_MODULES
from kernelyard.transform.pass_infra.bisect import BISECT_LIMIT, bisection_of_environment
from kernelyard.transform.pass_infra.pass_base import Instrument, Pass, PassContext

if TYPE_CHECKING:
    from kernelyard.driver.measured_placement import Placements, TuneRequest, Tuning
    from kernelyard.runtime.placement_decision import PlacementDecision

log = logging.getLogger("kernelyard")

OpenSession: TypeAlias = Callable[..., CompileSession]
"""`open_with(options, decision=None)` opens a session with these, and all else as `compile` was told."""


def compile(  # noqa: A001  the public name, as `re.compile`
    model: object,
    target: Target | str = "cpu",
    backends: Sequence[str] | str = "auto",
    options: Options | None = None,
    *,
    require: Mapping[str, float] | None = None,
    strict: bool = False,
    exclude_patterns: Sequence[str] = (),
    precision: str = DEFAULT,
    pipeline: CompilePipeline | Pass | str | None = None,
    instruments: Sequence[Instrument] = (),
    tune: Tuning | str | float | None = None,
    placement: Placements | None = None,
    bounds: Mapping[str, Bounds] | None = None,
) -> Executable:
    """Compile a model.

    model: a path, bytes, a model object that an installed frontend knows, or an IRModule. target: a kind of device,
    "cpu" or one that plugins are for, or a Target. backends: names in order of preference, "auto" for all that can be
    used, [] for none but the code generator. options: {plugin: {option: value}}. require: {backend: the least share of
    FLOPs that it must run}. strict: raise where a plugin breaks its word, instead of running its part elsewhere.
    exclude_patterns: names of patterns that are not to be offloaded. precision: "float32" computes as the model says;
    other names of `kernelyard.driver.session.precision` trade accuracy for speed (docs/precision.md). pipeline: what
    `get_default_pipeline(target)` returns, with changes; a Pass, or the name of a pipeline, is run in place of its
    stage "simplify". instruments: watch the passes (`kernelyard.transform.Instrument`). tune: "quick", "full", seconds
    or a `Tuning`, to measure placements (docs/placement.md). placement: what was measured, or the file of it.
    bounds: {symbolic size: (least, largest or None)}, for backends that take sizes up to a limit; others are refused
    at run time, and so are inputs of size 0 whose results are not empty. Bodies of branches and loops see no bounds.
    Warns: PerformanceWarning where ops are left to the reference interpreter, and where the target is slow in the
      precision; PlacementWarning where no placement of `placement` fits.
    Raises: FrontendError, UnknownBackendError, BackendUnavailableError, TargetError, OptionError, CoverageError for
      `require`, with `strict` PluginContractError, and what passes raise.

    Example:
        >>> import numpy as np
        >>> from kernelyard.ir import FunctionBuilder, IRModule
        >>> b = FunctionBuilder()
        >>> module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2,))))})
        >>> exe = compile(module, backends=[])
        >>> exe(np.array([-1, 2], np.float32)).numpy().tolist()
        [0.0, 2.0]
    """
    how: dict[str, Any] = {"require": require, "strict": strict, "exclude_patterns": exclude_patterns, "bounds": bounds}
    open_with = partial(open_session, target, backends, precision=precision, pipeline=pipeline, **how)
    session = open_with(options)
    try:
        if tune is not None or placement is not None:
            open_with = _with_measured_placement(session, open_with, model, tune, placement)
            session = open_with(options)
        return _compile_for_all_sizes(session, open_with, model, instruments)
    except UnsupportedOperatorError as error:
        from kernelyard.driver.specialize import specialize_at_first_call  # inside: few models need it

        def compile_with(fixed: Options) -> Executable:
            return _compile_for_all_sizes(open_with(fixed), open_with, model, instruments)

        return specialize_at_first_call(session, model, error, compile_with)


def _with_measured_placement(
    session: CompileSession,
    open_with: OpenSession,
    model: object,
    tune: Tuning | str | float | None,
    placement: Placements | None,
) -> OpenSession:
    """Return `open_with` with the measured placement; as it is, with a warning, where none of `placement` fits."""
    from kernelyard.driver.measured_placement import decide  # inside: most compiles measure nothing

    module = session.import_model(model)
    decision = decide(session, module, tune, placement, _compiler_with(session, open_with, module))
    return open_with if decision is None else partial(open_with, decision=decision)


def request_to_tune(
    model: object,
    tuning: Tuning,
    target: Target | str = "cpu",
    backends: Sequence[str] | str = "auto",
    options: Options | None = None,
    **how: Any,
) -> TuneRequest:
    """Return what a tuner is given where `compile` has these arguments: for tuners that measure elsewhere.

    how: the others of `compile` that a placement depends on. Raises: as `compile`.
    """
    from kernelyard.driver.measured_placement import TuneRequest, facts_of

    open_with = partial(open_session, target, backends, **how)
    session = open_with(options)
    module = session.import_model(model)
    return TuneRequest(session, module, facts_of(session, module), tuning, _compiler_with(session, open_with, module))


def _compiler_with(
    session: CompileSession, open_with: OpenSession, module: IRModule
) -> Callable[[PlacementDecision], Executable]:
    """Return what compiles a module by a decision."""
    return lambda decision: _run_phases(open_with(session.options, decision=decision), lambda: module, ())


def _compile_for_all_sizes(
    session: CompileSession, open_with: OpenSession, model: object, instruments: Sequence[Instrument]
) -> Executable:
    """Compile a model, with its alternatives for further sizes and what compiles it again for sizes it refuses."""
    read = partial(session.import_model, model)
    exe = _run_phases(session, read, instruments)
    if session.decision is not None and session.decision.by_size:
        from kernelyard.driver.measured_placement import add_alternatives  # inside: few models have any

        reopen = partial(open_with, session.options)
        add_alternatives(exe, session.decision, lambda each: _run_phases(reopen(decision=each), read, instruments))

    def compile_again(options: Options, bind: Callable[[IRModule], IRModule]) -> Executable:
        again = open_with(options)
        return _run_phases(again, lambda: bind(again.import_model(model)), instruments)

    if not session.bounds:
        exe.compile_for_refused_sizes = compiler_for_refused_sizes(session, model, exe, compile_again)
    return exe


def _run_phases(session: CompileSession, read: Callable[[], IRModule], instruments: Sequence[Instrument]) -> Executable:
    """Run all phases on the module that `read` imports, which nobody else holds: its weights are freed once packed."""
    with watch_passes(session, instruments):
        generated, checks, report = _generate_code(session, read)
    exe = link(session, generated, checks)
    fallbacks = {symbol: tuple(step.symbol for step in each.steps) for symbol, each in exe.fallbacks.items()}
    exe.report = add_fallbacks(report, fallbacks)
    log.info("%s", exe.report.summary)
    return exe


def _generate_code(
    session: CompileSession, read: Callable[[], IRModule]
) -> tuple[Generated, dict[str, tuple[SizeCheck, ...]], Report]:
    """Return what `link` puts together, and the report, which nothing of the modules up to there outlives.

    Raises: as `read` and the phases, CoverageError.
    """
    with collector_paused():
        module = simplify(session, read())
        check_names(module)
        placed = place(session, module)
    if session.required:  # known before the work is done
        check_coverage(session.report(placed, session.generator), session.required)
    placed, offloaded = offload(session, placed)
    generated = generate(session, offloaded)
    report = session.report(placed, generated.generator, generated.kernels)
    check_coverage(report, session.required)
    session.recorder.matches.clear()  # they refer to the whole module, and this was the last that reads them
    return generated, {name: size_checks(module, name) for name in module.entry_functions()}, report


def explain(
    model: object,
    target: Target | str = "cpu",
    backends: Sequence[str] | str = "auto",
    options: Options | None = None,
    *,
    require: Mapping[str, float] | None = None,
    strict: bool = False,
    exclude_patterns: Sequence[str] = (),
    precision: str = DEFAULT,
    pipeline: CompilePipeline | Pass | str | None = None,
    instruments: Sequence[Instrument] = (),
    placement: Placements | None = None,
    bounds: Mapping[str, Bounds] | None = None,
) -> Report:
    """Report what `compile` would offload and what not, with reasons, without generating code.

    Raises: as `compile`.
    """
    how: dict[str, Any] = {"require": require, "strict": strict, "exclude_patterns": exclude_patterns, "bounds": bounds}
    open_with = partial(open_session, target, backends, precision=precision, pipeline=pipeline, **how)
    session = open_with(options)
    if placement is not None:
        session = _with_measured_placement(session, open_with, model, None, placement)(options)
    with watch_passes(session, instruments):
        placed = place(session, simplify(session, session.import_model(model)))
        report = session.report(placed, session.generator, plan_kernels(session, placed))
    check_coverage(report, session.required)
    return report


def offered_module(
    model: object,
    target: Target | str = "cpu",
    backends: Sequence[str] | str = (),
    options: Options | None = None,
    **how: Any,
) -> IRModule:
    """Return a model in the form in which backends are offered it, for those who write patterns; print it.

    It is simplified and in the precision asked for; no backend has changed it yet. The arguments are those of
    `explain`. Raises: as `compile`.

    Example:
        >>> from kernelyard.ir import FunctionBuilder, IRModule
        >>> b = FunctionBuilder()
        >>> module = IRModule({"main": b.function(b.op("maximum", b.input("x", (2, 3)), 0.0))})
        >>> [binding.value.op_name for binding in offered_module(module)["main"].bindings]
        ['nn.relu']
    """
    session = open_session(target, list(backends), options, **how)
    with watch_passes(session, ()):
        return simplify(session, session.import_model(model))


def watch_passes(session: CompileSession, instruments: Sequence[Instrument]) -> PassContext:
    """Return the context of the compile's passes; a pipeline of the user's own is verified pass by pass."""
    if session.pipeline.changes:
        from kernelyard.transform.pass_infra.instruments import VerifyEach  # inside: few compiles change it

        instruments = [VerifyEach(), *instruments]
    if BISECT_LIMIT.is_set:
        instruments = [*instruments, bisection_of_environment()]
    return PassContext.current().extended(instruments)


def simplify(session: CompileSession, module: IRModule) -> IRModule:
    """Bring a module into the form that backends like to see, in the precision asked for, for the kind of target."""
    for stage in session.pipeline.between(None, PRECISION):
        module = stage(module)
    module = session.precision.apply(module)
    for stage in session.pipeline.between(PRECISION, OFFLOAD):
        module = stage(module)
    return module


def place(session: CompileSession, module: IRModule) -> IRModule:
    """Offer a module to the backends, one after another. Raises: as `partition`."""
    return partition(module, session.backends, session.placement)


def link(session: CompileSession, generated: Generated, checks: Mapping[str, tuple[SizeCheck, ...]]) -> Executable:
    """Put programs, kernels, external modules and constants together; `checks` are those of each entry function.

    Constants are packed now, when nothing else holds what they are packed from; the threads that do so take new memory,
    so that what passes have freed goes back to the system first.
    Raises: PluginContractError when two modules define one symbol.
    """
    HEAP_TRIMMER.trim()
    hash_ahead(generated.module)
    module = remove_fallbacks(generated.module)
    modules: list[RuntimeModule] = [*module.attrs.get(EXTERNAL_MODULES, ()), *generated.kernel_modules]
    module_of, reference = _module_indices(modules), len(modules)  # the number that the reference module will have
    entries, names = module.entry_functions(), vm_function_names(module)
    programs = {n: lower(n, f, module_of, reference, checks.get(n, ())) for n, f in entries.items() if n not in names}
    vm_functions = {
        n: lower_vm_function(n, module, module_of, reference, checks.get(n, ())) for n in entries if n in names
    }
    fallbacks = lower_fallbacks(generated.module, module_of, reference)
    reference_calls: dict[str, Call] = {}
    constants: dict[str, np.ndarray] = {}
    for each in (*programs.values(), *vm_functions.values(), *fallbacks.values()):
        reference_calls.update(each.reference_calls)
        constants.update(each.constants)
    if reference_calls:
        from kernelyard.ops.reference_runtime import ReferenceModule  # inside: native code runs most models whole

        modules.append(ReferenceModule.from_calls(reference_calls))
    _warn_of_interpreted([*programs.values(), *vm_functions.values()])
    for each in modules:
        constants.update(each.constants())
    return Executable(
        {name: each.program for name, each in programs.items()},
        modules,
        constants,
        module.attrs.get("metadata", {}),
        target=str(session.target),
        vm_functions={name: each.program for name, each in vm_functions.items()},
        precision=session.precision.name,
        fallbacks={symbol: each.program for symbol, each in fallbacks.items()},
    )


def _warn_of_interpreted(lowered: Iterable[Lowered]) -> None:
    calls = [call for each in lowered for call in each.reference_calls.values()]
    names = ", ".join(sorted({call.op_name for call in calls if _is_slow(call)}))
    if names:
        message = f"these ops run on the slow reference interpreter: {names}"
        warn_caller(message, PerformanceWarning)


def _is_slow(call: Call) -> bool:
    """Return False where nothing else could run the call, or where it makes but one number of nothing: a key."""
    return not introduces_symbols(call) and (bool(call.args) or call.tensor_type.numel != 1)


def _module_indices(modules: Sequence[RuntimeModule]) -> dict[str, int]:
    """Return the number of the module that has each symbol."""
    module_of: dict[str, int] = {}
    for number, each in enumerate(modules):
        for symbol in each.symbols():
            if symbol in module_of:
                kinds = f"{modules[module_of[symbol]].kind} and {each.kind}"
                raise PluginContractError(f"two modules define the symbol {symbol!r}", found=kinds, expected="one")
            module_of[symbol] = number
    return module_of
