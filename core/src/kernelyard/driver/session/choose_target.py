"""Default target: one that an installed backend or code generator supports."""

from __future__ import annotations

from kernelyard.errors import TargetError, did_you_mean
from kernelyard.plugins.discovery.manager import PluginManager
from kernelyard.runtime.device.device import device_kinds
from kernelyard.runtime.installed.distributions import install_line
from kernelyard.target import Target, as_target

# What other compilers call a target, by which nobody would find it.
_OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda", "llvm": "cpu", "x86": "cpu", "x86_64": "cpu"}


def choose_target(manager: PluginManager, wanted: Target | str) -> Target:
    """Return the target, whose kind some manifest has among its `targets`, or some plugin drives devices of.

    Raises: TargetError.
    """
    target = as_target(wanted)
    of_plugins = manager.target_kinds()
    if target.kind in of_plugins:  # device drivers are searched among all installed distributions
        return target
    known = sorted({*device_kinds(), *of_plugins})
    if target.kind in known:
        return target
    install = install_line(target.kind) or "install a plugin that supports it"
    raise TargetError(
        f"no installed plugin supports the target {target.kind!r}",
        expected=", ".join(known),
        hint=did_you_mean(_OTHER_NAMES.get(target.kind.lower(), target.kind), known) or install,
    )
