"""Which backends take part in a compile, in which order; and which code generator."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kernelyard.errors import (
    BackendUnavailableError,
    KernelyardError,
    PluginContractError,
    PluginTimeoutError,
    UnknownBackendError,
)
from kernelyard.placement.policy import order_backends
from kernelyard.plugins.backend import Backend
from kernelyard.plugins.code_generator import CodeGenerator
from kernelyard.plugins.guard import within_time
from kernelyard.plugins.manager import PluginManager
from kernelyard.target import Target

log = logging.getLogger(__name__)

AUTO = "auto"


def choose_backends(
    manager: PluginManager,
    target: Target,
    wanted: Sequence[str] | str,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Backend]:
    """The backends to offer the model to, in order, each configured by its options.

    wanted: names, "auto", or []. A name may be a code generator's: the target's own takes part anyway, so naming it
    only checks that it is usable. A backend that fails over its options is left out with "auto", else an error.
    Raises: UnknownBackendError, BackendUnavailableError, PluginContractError, OptionError.
    """
    given = options or {}
    chosen = [(each, _configured(each, given.get(each.name, {}))) for each in _chosen(manager, target, wanted)]
    for backend, result in chosen:
        if isinstance(result, PluginContractError):
            if wanted != AUTO:
                raise result
            log.warning("the backend %s is left out", backend.name, exc_info=result)
    return [result for _, result in chosen if isinstance(result, Backend)]


def _configured(backend: Backend, options: Mapping[str, Any]) -> Backend | PluginContractError:
    """The backend for these options, or what is to be said of it. Raises: OptionError and the like, which it means."""
    try:
        result = within_time(f"giving {backend.name} its options", lambda: backend.configured(options))
    except Exception as error:  # a vendor's code
        if isinstance(error, KernelyardError) and not isinstance(error, PluginTimeoutError):
            raise
        return PluginContractError(
            f"the backend {backend.name} failed when it was given its options",
            found=error.message if isinstance(error, KernelyardError) else repr(error),
            hint="report this to the plugin's authors; leave the backend out to go on",
        )
    if isinstance(result, Backend) and result.name == backend.name:
        return result
    return PluginContractError(
        f"the backend {backend.name} configured itself to something else", found=repr(result), expected=backend.name
    )


def _chosen(manager: PluginManager, target: Target, wanted: Sequence[str] | str) -> list[Backend]:
    if wanted == AUTO:
        for info in manager.unavailable("backend", target.kind):
            log.warning("the backend %s is left out: %s; %s", info.name, info.reason, info.hint or "")
        usable = {backend.name: backend for backend in manager.active("backend", target.kind)}
        return [usable[name] for name in order_backends({name: manager.priority_of(name) for name in usable})]
    parts = [manager.get_any(name, ("backend", "code_generator"), target.kind) for name in _names(wanted)]
    return [part for part in parts if isinstance(part, Backend)]


def choose_code_generator(
    manager: PluginManager, target: Target, wanted: Sequence[str] | str = AUTO
) -> CodeGenerator | None:
    """The target's own code generator, None when there is none; of several the first that `wanted` names.

    Raises: BackendUnavailableError for a GPU target, whose programs cannot run on the reference interpreter.
    """
    generators: list[CodeGenerator] = manager.active("code_generator", target.kind)
    if not generators and target.kind != "cpu":
        raise BackendUnavailableError(
            f"no code generator for target {target.kind!r} is usable",
            hint=f"pip install kernelyard-native-{target.kind}; `kernelyard doctor` says more",
        )
    by_name = {generator.name: generator for generator in generators}
    named = [by_name[name] for name in wanted if name in by_name]
    return next(iter([*named, *generators]), None)


def rival_of(wanted: Sequence[str] | str, generator: CodeGenerator | None) -> CodeGenerator | None:
    """The code generator, where the user leaves to us who runs what; libraries that are named get all they can run."""
    return generator if wanted == AUTO else None


def _names(wanted: Sequence[str] | str) -> tuple[str, ...]:
    if not isinstance(wanted, (list, tuple)) or not all(isinstance(name, str) for name in wanted):
        example, hint = (f'["{wanted}"]', "add brackets") if isinstance(wanted, str) else ('["dnnl"]', None)
        raise UnknownBackendError(
            "backends is a list of names", found=repr(wanted), expected=f'{example}, "{AUTO}" or []', hint=hint
        )
    return order_backends({}, wanted)
