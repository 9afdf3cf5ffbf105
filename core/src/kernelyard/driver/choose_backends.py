"""Which backends take part in a compile, in which order; and which code generator."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.errors import BackendUnavailableError, UnknownBackendError
from kernelyard.placement.policy import order_backends
from kernelyard.plugins.backend import Backend
from kernelyard.plugins.code_generator import CodeGenerator
from kernelyard.plugins.manager import PluginManager
from kernelyard.target import Target


def choose_backends(manager: PluginManager, target: Target, wanted: Sequence[str] | str) -> list[Backend]:
    """The backends to offer the model to, in order.

    wanted: names, "auto", or []. A name may be a code generator's: these take part anyway, so naming one only checks
    that it is usable.
    Raises: UnknownBackendError, BackendUnavailableError.
    """
    if wanted == "auto":
        usable = {backend.name: backend for backend in manager.active("backend", target.kind)}
        priorities = {plugin.name: plugin.manifest.priority for plugin in manager.plugins if plugin.manifest}
        return [usable[name] for name in order_backends({name: priorities[name] for name in usable})]
    if isinstance(wanted, str):
        raise UnknownBackendError(
            "backends is a list of names",
            found=repr(wanted),
            expected=f'["{wanted}"], "auto" or []',
            hint="add brackets",
        )
    chosen: list[Backend] = []
    for name in order_backends({}, wanted):
        part = manager.get_any(name, ("backend", "code_generator"), target.kind)
        if isinstance(part, Backend):
            chosen.append(part)
    return chosen


def choose_code_generator(manager: PluginManager, target: Target) -> CodeGenerator | None:
    """The target's own code generator, None when there is none.

    Raises: BackendUnavailableError for a GPU target, whose programs cannot run on the reference interpreter.
    """
    generators = manager.active("code_generator", target.kind)
    if not generators and target.kind != "cpu":
        raise BackendUnavailableError(
            f"no code generator for target {target.kind!r} is usable",
            hint=f"pip install kernelyard-native-{target.kind}; `kernelyard doctor` says more",
        )
    return generators[0] if generators else None
