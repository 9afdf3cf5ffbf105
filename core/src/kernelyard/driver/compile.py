"""compile(): a model becomes an Executable, in phases that read like the list in `docs/architecture.md`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import kernelyard.ops  # noqa: F401  the vocabulary must be declared before a model is read
from kernelyard.driver.choose_backends import choose_backends, choose_code_generator
from kernelyard.driver.choose_target import choose_target
from kernelyard.driver.generate import Generated, generate, planned_kernels
from kernelyard.driver.import_model import import_model
from kernelyard.driver.lower import lower
from kernelyard.driver.lower_routine import lower_routine, routine_names
from kernelyard.driver.offload import offload
from kernelyard.driver.options import check_options
from kernelyard.driver.precision import DEFAULT, get_precision
from kernelyard.driver.requirements import check_coverage, check_requirements
from kernelyard.errors import OptionError, PerformanceWarning, PluginContractError
from kernelyard.ir import Call, IRModule
from kernelyard.ir.scopes import introduces_symbols
from kernelyard.ops.reference_runtime import ReferenceModule
from kernelyard.ops.size_checks import size_checks
from kernelyard.placement.build_report import build_report
from kernelyard.placement.partition import partition
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.rest import Rest
from kernelyard.plugins.manager import get_manager
from kernelyard.runtime.executable import Executable
from kernelyard.runtime.module import RuntimeModule
from kernelyard.runtime.program import Program, SizeCheck
from kernelyard.runtime.report import Report
from kernelyard.runtime.routine import Routine
from kernelyard.target import Target
from kernelyard.transform.pipelines import get_pipeline
from kernelyard.transform.run_codegen import EXTERNAL_MODULES

log = logging.getLogger("kernelyard")

SIMPLIFY_FOR = {"cuda": "simplify_cuda"}  # pipelines that follow "simplify", by the target's kind
Options = Mapping[str, Mapping[str, Any]]


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
) -> Executable:
    """Compile a model.

    model: a path, bytes, a model object that an installed frontend knows, or an IRModule. target: a kind of device,
    "cpu" or one that plugins are for, or a Target. backends: names in order of preference, "auto" for all that can be
    used, [] for none but the code generator. options: {plugin: {option: value}}. require: {backend: the least share of
    FLOPs that it must run}. strict: raise where a plugin breaks its word, instead of running its part elsewhere.
    exclude_patterns: names of patterns that are not to be offloaded. precision: "float32" computes as the model says;
    other names of `kernelyard.driver.precision` trade accuracy for speed (docs/precision.md).
    Warns: PerformanceWarning where ops are left to the reference interpreter, and where the target is slow in the
      precision.
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
    manager = get_manager()
    target = choose_target(manager, target)
    checked, required = check_options(manager, options), check_requirements(manager, require)
    chosen_precision = get_precision(precision)
    chosen_precision.warn_where_slow(target)
    chosen = choose_backends(manager, target, backends, checked)
    choice = choose_code_generator(manager, target, backends)
    generator = choice.generator
    recorder = Recorder(manager.label_of, choice.reason_in(target))

    module = for_target(chosen_precision.apply(simplify(import_model(manager, model, checked))), target)
    excluded = _names(exclude_patterns)
    rival = None if required else choice.rival_in(target, backends)
    placed = partition(module, chosen, target, recorder, strict, excluded, rival)
    if required:  # known before the work is done
        check_coverage(
            build_report(
                placed, recorder, str(target), Rest(generator.name if generator else None), precision=precision
            ),
            required,
        )
    placed, offloaded = offload(placed, chosen, target, checked, recorder, strict, excluded, rival)
    own_options = checked.get(generator.name, {}) if generator else {}
    generated = generate(offloaded, generator, choice.target, own_options, recorder, strict)
    checks = {name: size_checks(module, name) for name in module.entry_functions()}
    exe = link(generated, target, checks, precision)

    rest = Rest(generated.generator.name if generated.generator else None)
    exe.report = build_report(placed, recorder, str(target), rest, generated.kernels, precision)
    check_coverage(exe.report, required)
    log.info("%s", exe.report.summary)
    return exe


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
) -> Report:
    """What `compile` would offload and what not, with reasons; no code is generated.

    Raises: as `compile`.
    """
    manager = get_manager()
    target = choose_target(manager, target)
    checked, required = check_options(manager, options), check_requirements(manager, require)
    chosen_precision = get_precision(precision)
    chosen_precision.warn_where_slow(target)
    chosen = choose_backends(manager, target, backends, checked)
    choice = choose_code_generator(manager, target, backends)
    generator = choice.generator
    recorder = Recorder(manager.label_of, choice.reason_in(target))
    module = for_target(chosen_precision.apply(simplify(import_model(manager, model, checked))), target)
    rival = None if required else choice.rival_in(target, backends)
    placed = partition(module, chosen, target, recorder, strict, _names(exclude_patterns), rival)
    kernels = planned_kernels(placed, generator)
    report = build_report(
        placed, recorder, str(target), Rest(generator.name if generator else None), kernels, precision
    )
    check_coverage(report, required)
    return report


def _names(exclude_patterns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(exclude_patterns, str) or not all(isinstance(name, str) for name in exclude_patterns):
        raise OptionError("exclude_patterns is a list of names", found=repr(exclude_patterns), expected='["dnnl.pool"]')
    return tuple(exclude_patterns)


def simplify(module: IRModule) -> IRModule:
    """Canonical forms, types, constants folded, norms folded, duplicates and dead code removed."""
    return get_pipeline("simplify")(module)


def for_target(module: IRModule, target: Target) -> IRModule:
    """What the kernels of a target do in one is one operator, before any backend is asked."""
    name = SIMPLIFY_FOR.get(target.kind)
    return get_pipeline(name)(module) if name is not None else module


def link(
    generated: Generated, target: Target, checks: Mapping[str, tuple[SizeCheck, ...]], precision: str = DEFAULT
) -> Executable:
    """Put programs, kernels, external modules and constants together; `checks` are those of each entry function.

    Raises: PluginContractError when two modules answer to one symbol.
    """
    module = generated.module
    modules: list[RuntimeModule] = [*module.attrs.get(EXTERNAL_MODULES, ()), *generated.kernel_modules]
    home = _home(modules)
    routines = routine_names(module)
    lowered = [
        lower_routine(name, module, home, len(modules), checks.get(name, ()))
        if name in routines
        else lower(name, function, home, len(modules), checks.get(name, ()))
        for name, function in module.entry_functions().items()
    ]
    reference_calls = {symbol: call for each in lowered for symbol, call in each.reference_calls.items()}
    if reference_calls:
        modules.append(ReferenceModule.from_calls(reference_calls))
        _warn_of(call for call in reference_calls.values() if not introduces_symbols(call))
    constants = {digest: array for each in lowered for digest, array in each.constants.items()}
    for each in modules:
        constants.update(each.constants())
    functions = [each.program for each in lowered]
    return Executable(
        {each.name: each for each in functions if isinstance(each, Program)},
        modules,
        constants,
        module.attrs.get("metadata", {}),
        target=str(target),
        routines={each.name: each for each in functions if isinstance(each, Routine)},
        precision=precision,
    )


def _warn_of(interpreted: Iterable[Call]) -> None:
    names = ", ".join(sorted({call.op_name for call in interpreted}))
    if names:
        message = f"these ops run on the slow reference interpreter: {names}"
        warnings.warn(message, PerformanceWarning, stacklevel=4)


def _home(modules: Sequence[RuntimeModule]) -> dict[str, int]:
    """The number of the module that has each symbol."""
    home: dict[str, int] = {}
    for number, each in enumerate(modules):
        for symbol in each.symbols():
            if symbol in home:
                kinds = f"{modules[home[symbol]].kind} and {each.kind}"
                raise PluginContractError(f"two modules answer to {symbol!r}", found=kinds, expected="one")
            home[symbol] = number
    return home
