"""CompileSession: all that is settled before a model is read; each phase of a compile is given it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernelyard.dims import Bounds
from kernelyard.dims.interval import check_bounds
from kernelyard.driver.session.choose_backends import GeneratorChoice, choose_backends, choose_code_generator
from kernelyard.driver.session.choose_pipeline import choose_pipeline, pipeline_for
from kernelyard.driver.session.choose_target import choose_target
from kernelyard.driver.session.import_model import import_model
from kernelyard.driver.session.options import check_options
from kernelyard.driver.session.precision import DEFAULT, Precision, get_precision
from kernelyard.driver.session.requirements import check_requirements
from kernelyard.errors import OptionError
from kernelyard.ir import IRModule
from kernelyard.placement.build_report import build_report
from kernelyard.placement.policy import Assigned, LeastCost, Policy, TakeAll
from kernelyard.placement.recorder import Recorder
from kernelyard.placement.rest import Rest
from kernelyard.placement.settings import PlacementSettings
from kernelyard.plugins.discovery.manager import PluginManager, get_manager
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.runtime.placement_decision import ASSIGNED, LEAST_COST, PlacementDecision
from kernelyard.runtime.report import Report
from kernelyard.runtime.report_entries import Kernel
from kernelyard.target import Target
from kernelyard.transform.compile_pipeline import CompilePipeline
from kernelyard.transform.pass_infra.pass_base import Pass

Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class CompileSession:
    """State of one compile: its target, backends, code generator and options.

    target: as the code generator completes it. backends: in the order in which they are offered the model, each
    configured. choice: the code generator for the rest, and its target. options: {plugin: {option: value}}. required:
    {backend: the least share of FLOPs}. policy: decides over what backends accept.
    recorder: records what backends accept and decline. pipeline: its stages. decision: the measured placement that
    backends and policy come from. bounds: of symbolic sizes.
    """

    manager: PluginManager
    target: Target
    backends: tuple[Backend, ...]
    choice: GeneratorChoice
    options: Options
    required: Mapping[str, float]
    precision: Precision
    strict: bool
    exclude_patterns: tuple[str, ...]
    policy: Policy
    recorder: Recorder
    pipeline: CompilePipeline
    decision: PlacementDecision | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)

    @property
    def generator(self) -> CodeGenerator | None:
        """The code generator, None where the reference interpreter runs what no backend takes."""
        return self.choice.generator

    @property
    def placement(self) -> PlacementSettings:
        """The settings of the session that placement reads."""
        return PlacementSettings(self.target, self.recorder, self.strict, self.exclude_patterns, self.policy)

    def import_model(self, model: object) -> IRModule:
        """Import a model with the session's options and bounds. Raises: as `import_model`."""
        return import_model(self.manager, model, self.options, self.bounds)

    def report(
        self,
        placed: IRModule,
        generator: CodeGenerator | None,
        kernels: Sequence[Kernel] = (),
    ) -> Report:
        """Return the report of a placed module, whose rest `generator` runs."""
        rest = Rest(generator.name if generator is not None else None)
        report = build_report(placed, self.recorder, str(self.target), rest, kernels, self.precision.name)
        return replace(report, pipeline=self.pipeline.changes, decision=self.decision)


def open_session(
    target: Target | str = "cpu",
    backends: Sequence[str] | str = "auto",
    options: Options | None = None,
    *,
    require: Mapping[str, float] | None = None,
    strict: bool = False,
    exclude_patterns: Sequence[str] = (),
    precision: str = DEFAULT,
    pipeline: CompilePipeline | Pass | str | None = None,
    decision: PlacementDecision | None = None,
    bounds: Mapping[str, Bounds] | None = None,
) -> CompileSession:
    """Settle what the arguments of `compile` mean on this machine, with the plugins that are installed.

    decision: a measured placement, which says more than `backends` does.
    Warns: PerformanceWarning where the target is slow in the precision.
    Raises: TargetError, OptionError, UnknownBackendError, BackendUnavailableError, PluginContractError, PassError.
    """
    manager = get_manager()
    target = choose_target(manager, target)
    checked, required = check_options(manager, options), check_requirements(manager, require)
    chosen_precision = get_precision(precision)
    chosen_precision.warn_where_slow(target)
    offered = backends if decision is None else decision.backends
    configured = choose_backends(manager, target, offered, checked)
    choice = choose_code_generator(manager, target, backends)
    target = choice.target if choice.target.kind == target.kind else target
    return CompileSession(
        manager,
        target,
        tuple(configured),
        choice,
        checked,
        required,
        chosen_precision,
        strict,
        _names(exclude_patterns),
        policy=TakeAll() if required else _policy(choice, target, backends, decision),
        recorder=Recorder(manager.label_of, choice.reason_in(target)),
        pipeline=choose_pipeline(pipeline, pipeline_for(choice.generator, choice.target)),
        decision=decision,
        bounds=check_bounds(bounds),
    )


def _policy(
    choice: GeneratorChoice, target: Target, backends: Sequence[str] | str, decision: PlacementDecision | None
) -> Policy:
    if decision is None:
        return choice.policy_in(target, backends)
    if decision.policy == ASSIGNED:
        return Assigned(decision.assigned)
    if decision.policy == LEAST_COST and choice.generator is not None:
        return LeastCost(choice.generator, choice.target)
    return TakeAll()


def _names(exclude_patterns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(exclude_patterns, str) or not all(isinstance(name, str) for name in exclude_patterns):
        raise OptionError("exclude_patterns is a list of names", found=repr(exclude_patterns), expected='["dnnl.pool"]')
    return tuple(exclude_patterns)
