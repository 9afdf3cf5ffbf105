"""The options of a compile: {backend: {option: value}}, checked before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from kernelyard.errors import KernelyardError
from kernelyard.plugins.manager import get_manager

CORE = "core"


class OptionError(KernelyardError):
    """A compile option is unknown or of the wrong form."""

    code = "KY140"


def check_options(options: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """The options as plain dictionaries; each key is "core" or the name of an installed plugin.

    Raises: OptionError.
    """
    checked: dict[str, dict[str, Any]] = {}
    for name, values in (options or {}).items():
        if not isinstance(values, Mapping):
            raise OptionError(
                f"the options of {name!r} are no dictionary", found=repr(values), expected="{option: value}"
            )
        known = [CORE, *(plugin.name for plugin in get_manager().plugins)]
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise OptionError(
                f"options are given for {name!r}, which is not installed",
                expected=", ".join(known),
                hint=f"did you mean {close[0]!r}?" if close else None,
            )
        checked[name] = dict(values)
    return checked


def is_strict(options: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a backend that breaks its word is an error: {"core": {"strict": True}}."""
    return bool(options.get(CORE, {}).get("strict", False))
