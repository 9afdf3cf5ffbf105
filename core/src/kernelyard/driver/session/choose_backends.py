"""Selection and order of the backends of a compile, and of its code generator."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kernelyard.driver.isolation.isolated_backend import isolate
from kernelyard.errors import (
    BackendUnavailableError,
    KernelyardError,
    PluginContractError,
    PluginTimeoutError,
    TargetError,
    UnknownBackendError,
)
from kernelyard.placement.policy import LeastCost, Policy, TakeAll, order_backends
from kernelyard.plugins.discovery.manager import PluginManager
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.interfaces.code_generator import CodeGenerator
from kernelyard.plugins.sandbox.guard import within_time
from kernelyard.runtime.device.device import CPU, device_kinds
from kernelyard.runtime.installed.distributions import install_line
from kernelyard.runtime.report_entries import Reason
from kernelyard.runtime.report_words import ON_HOST
from kernelyard.target import Target

log = logging.getLogger(__name__)

AUTO = "auto"


def choose_backends(
    manager: PluginManager,
    target: Target,
    wanted: Sequence[str] | str,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Backend]:
    """Return the backends to offer the model to, in order, each configured by its options.

    wanted: names, "auto", or []. A name may be a code generator's: the target's own takes part anyway, so naming it
    only checks that it is usable. A backend that fails over its options is left out with "auto", else an error.
    Raises: UnknownBackendError, BackendUnavailableError, PluginContractError, OptionError.
    """
    given = options or {}
    chosen = [
        (each, _configure(each, given.get(each.name, {}), manager.label_of(each.name)))
        for each in _choose_generator(manager, target, wanted)
    ]
    for backend, result in chosen:
        if isinstance(result, PluginContractError):
            if wanted != AUTO:
                raise result
            log.warning("the backend %s is left out", backend.name, exc_info=result)
    made = [result for _, result in chosen if isinstance(result, Backend)]
    return [isolate(each, manager, target, given.get(each.name, {})) for each in made]


def _configure(backend: Backend, options: Mapping[str, Any], label: str) -> Backend | PluginContractError:
    """Return the backend for these options, or what is to be said of it; label: the plugin, for messages.

    Raises: OptionError and the like, which it means.
    """
    try:
        result = within_time(f"configuring {backend.name}", lambda: backend.configured(options))
    except Exception as error:  # a vendor's code
        if isinstance(error, KernelyardError) and not isinstance(error, PluginTimeoutError):
            error.where = error.where or label
            raise
        return PluginContractError(
            f"the backend {backend.name} failed to be configured",
            where=label,
            found=error.message if isinstance(error, KernelyardError) else repr(error),
            hint="report this to the plugin's authors; exclude the backend to continue",
        )
    if isinstance(result, Backend) and result.name == backend.name:
        return result
    message = f"configured() of {backend.name} returned another object"
    return PluginContractError(message, where=label, found=type(result).__name__, expected=backend.name)


def _choose_generator(manager: PluginManager, target: Target, wanted: Sequence[str] | str) -> list[Backend]:
    if wanted == AUTO:
        for info in manager.unavailable("backend", target.kind):
            log.warning("the backend %s is left out: %s; %s", info.name, info.reason, info.hint or "")
        return order_of_auto(manager, target.kind)
    on_host = {generator.name for generator in _host_generators(manager, target)}
    names = [name for name in _names(wanted) if name not in on_host]
    parts = [manager.get_any(name, ("backend", "code_generator"), target.kind) for name in names]
    return [part for part in parts if isinstance(part, Backend)]


def order_of_auto(manager: PluginManager, kind: str) -> list[Backend]:
    """Return the backends for a kind of target in the order in which "auto" offers them the model."""
    usable: dict[str, Backend] = {backend.name: backend for backend in manager.active("backend", kind)}
    priorities = {name: manager.priority_of(name) for name in usable}
    with_costs = [name for name, backend in usable.items() if backend.states_costs]
    return [usable[name] for name in order_backends(priorities, with_costs=with_costs)]


class GeneratorChoice(NamedTuple):
    """The code generator for what no backend takes, None where there is none; and the target that it generates for,
    which is the program's own or its host's."""

    generator: CodeGenerator | None
    target: Target

    def reason_in(self, program: Target) -> dict[str, Reason]:
        """Return why work of the generator is not on the program's device, by its name; nothing where it is."""
        if self.generator is None or self.target.kind == program.kind:
            return {}
        message = f"{program.kind} has no code generator here; kernels of {self.generator.name} run on the host"
        return {self.generator.name: Reason(program.kind, "", ON_HOST, message)}

    def policy_in(self, program: Target, wanted: Sequence[str] | str) -> Policy:
        """Return the policy: where the user leaves the choice to us, and on one device, costs decide; libraries
        that are named get all they can run."""
        if self.generator is None or wanted != AUTO or self.target.kind != program.kind:
            return TakeAll()
        return LeastCost(self.generator, self.target)


def choose_code_generator(
    manager: PluginManager, target: Target, wanted: Sequence[str] | str = AUTO
) -> GeneratorChoice:
    """Choose the target's code generator, of several the first that `wanted` names; for a device without any, the
    host's.

    Raises: BackendUnavailableError for a device without either, whose programs cannot run on the reference interpreter;
      TargetError, PluginContractError.
    """
    own: list[CodeGenerator] = manager.active("code_generator", target.kind)
    generators = own or _host_generators(manager, target)
    if not generators and target.kind != CPU:
        raise _no_generator(manager, target)
    by_name = {generator.name: generator for generator in generators}
    named = [by_name[name] for name in wanted if name in by_name]
    chosen = next(iter([*named, *generators]), None)
    if chosen is None or not own:
        return GeneratorChoice(chosen, target.host)
    return GeneratorChoice(chosen, _complete_target(chosen, target, manager.label_of(chosen.name)))


def _complete_target(generator: CodeGenerator, target: Target, label: str) -> Target:
    """Return the target as its code generator completes it; label: the plugin, for messages.

    Raises: TargetError, PluginContractError.
    """
    try:
        completed = within_time(f"completing the target by {generator.name}", lambda: generator.complete(target))
    except TargetError:  # the generator means it
        raise
    except Exception as error:  # a vendor's code
        raise PluginContractError(
            f"the code generator {generator.name} failed to complete the target",
            where=label,
            found=error.message if isinstance(error, KernelyardError) else repr(error),
            hint="report this to the plugin's authors",
        ) from error
    if not isinstance(completed, Target) or completed.kind != target.kind:
        message = f"complete() of {generator.name} returned another target"
        raise PluginContractError(
            message, where=label, found=type(completed).__name__, expected=f"a Target of {target.kind}"
        )
    return completed


def _host_generators(manager: PluginManager, target: Target) -> list[CodeGenerator]:
    """Return the CPU's code generators, for a device that is driven and has none of its own, not even one out of
    order."""
    if manager.providers("code_generator", target.kind) or target.kind not in device_kinds():
        return []
    return manager.active("code_generator", CPU)


def _no_generator(manager: PluginManager, target: Target) -> BackendUnavailableError:
    own = manager.providers("code_generator", target.kind)
    missing = CPU if not own and target.kind in device_kinds() else target.kind
    unusable = manager.providers("code_generator", missing)
    found = [f"{plugin.label} is {plugin.state}: {plugin.reason}" for plugin in unusable]
    hints = [plugin.hint for plugin in unusable] + [install_line(missing), "run `kernelyard doctor` for details"]
    return BackendUnavailableError(
        f"no code generator for target {target.kind!r} is usable",
        found="; ".join(found) or "none",
        expected=f"one for {target.kind}, or a device driver for it and a code generator for {CPU}",
        hint=next(hint for hint in hints if hint),
    )


def _names(wanted: Sequence[str] | str) -> tuple[str, ...]:
    if not isinstance(wanted, (list, tuple)) or not all(isinstance(name, str) for name in wanted):
        example, hint = (f'["{wanted}"]', "add brackets") if isinstance(wanted, str) else ('["dnnl"]', None)
        raise UnknownBackendError(
            "backends must be a list of names", found=repr(wanted), expected=f'{example}, "{AUTO}" or []', hint=hint
        )
    return order_backends({}, wanted)
