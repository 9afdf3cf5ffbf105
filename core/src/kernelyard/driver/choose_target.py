"""Default target: one that an installed backend or code generator supports."""

from __future__ import annotations

import difflib

from kernelyard.errors import TargetError
from kernelyard.plugins.manager import PluginManager
from kernelyard.runtime.device.device import device_kinds
from kernelyard.runtime.installed.distributions import install_line
from kernelyard.target import Target, as_target


def choose_target(manager: PluginManager, wanted: Target | str) -> Target:
    """Return the target, whose kind some manifest has among its `targets`, or some plugin drives devices of.

    Raises: TargetError.
    """
    target = as_target(wanted)
    of_plugins = manager.target_kinds()
    if target.kind in of_plugins:  # whoever drives devices is looked up among all that is installed
        return target
    known = sorted({*device_kinds(), *of_plugins})
    if target.kind in known:
        return target
    close = difflib.get_close_matches(target.kind, known, 1)
    install = install_line(target.kind) or "install a plugin that supports it"
    raise TargetError(
        f"no installed plugin supports the target {target.kind!r}",
        expected=", ".join(known),
        hint=f"did you mean {close[0]!r}?" if close else install,
    )
