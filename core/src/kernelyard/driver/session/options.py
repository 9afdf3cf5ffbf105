"""The options of a compile: {plugin: {option: value}}, checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kernelyard.errors import OptionError, did_you_mean
from kernelyard.plugins.discovery.manager import PluginManager


def check_options(manager: PluginManager, options: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """Return the options as plain dictionaries; each key is the name of an installed plugin.

    Raises: OptionError for an unknown plugin, an unknown option, a value of the wrong type.
    """
    if not isinstance(options or {}, Mapping):
        raise OptionError("options must be a dictionary", found=repr(options), expected="{plugin: {option: value}}")
    known = manager.option_names()
    checked: dict[str, dict[str, Any]] = {}
    for name, values in (options or {}).items():
        if name not in known:
            raise _unknown(f"options are given for {name!r}, which is not installed", name, known)
        if not isinstance(values, Mapping):
            raise OptionError(
                f"the options of {name!r} must be a dictionary", found=repr(values), expected="{option: value}"
            )
        for option in values:
            if option not in known[name]:
                raise _unknown(f"{name} has no option {option!r}", option, known[name])
        checked[name] = dict(values)
    return checked


def _unknown(message: str, name: object, known: Collection[str]) -> OptionError:
    return OptionError(
        message,
        expected=", ".join(known) or "no options",
        hint=did_you_mean(name, known),
    )
