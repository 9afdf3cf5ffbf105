"""List what a compiled program depends on beside its model: packages, their sources, the processor, the environment."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from kernelyard.runtime.installed.disk_cache import FOLDER_VARIABLE, SIZE_VARIABLE
from kernelyard.runtime.installed.distributions import CORE, iterate_distributions, list_source_files
from kernelyard.runtime.installed.entry_points import find
from kernelyard.runtime.installed.processor import processor
from kernelyard.variables import PREFIX

_PLUGINS = "kernelyard"  # the group of entry points


def compiler_facts() -> dict[str, Any]:
    """Return what a program that is compiled here depends on, as JSON: who compiles with equal facts gets its equal.

    Sources count by size and time, so that code which is being worked on, and keeps its version, counts as another.

    Example:
        >>> compiler_facts() == compiler_facts()
        True
    """
    own = processor()
    return {
        "python": sys.version,
        "packages": _packages(),
        "sources": [list_source_files(folder) for folder in _folders()],
        "processor": [own.model, sorted(own.flags), own.caches, os.cpu_count()],
        "environment": sorted((name, text) for name, text in os.environ.items() if _counts(name)),
    }


def _counts(variable: str) -> bool:
    is_ours = variable.startswith(PREFIX) and variable not in (FOLDER_VARIABLE, SIZE_VARIABLE)
    return is_ours or variable == "OMP_NUM_THREADS"


def _packages() -> list[tuple[str, int]]:
    """Return the metadata folders of what is installed, whose names have the versions, with their times."""
    found: list[tuple[str, int]] = []
    for each in iterate_distributions():
        with suppress(OSError):  # gone meanwhile
            found.append((os.path.basename(each.folder), os.stat(each.folder).st_mtime_ns))
    return sorted(found)


def _folders() -> list[str]:
    """Return the folders of the core and of all plugins."""
    folders = {each.folder for each in find(_PLUGINS).entries} | set(sys.modules[CORE].__path__)
    return sorted(folder for folder in folders if folder is not None and os.path.isdir(folder))
