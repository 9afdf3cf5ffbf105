"""Front doors whose names are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that gives names of other modules; its `__dir__` is set to list them.

    homes: for each module, the names that it has, separated by spaces.

    Example:
        >>> get = lazy_names("kernelyard.lazy", {"kernelyard.errors": "KernelyardError PassError"})
        >>> get("PassError").__name__
        'PassError'
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = import_module(home_of[name])
        value = getattr(home, name) if hasattr(home, name) else import_module(f"{home_of[name]}.{name}")
        setattr(sys.modules[module], name, value)  # the next use finds it without this function
        return value

    names = vars(sys.modules[module])
    names["__dir__"] = lambda: sorted({*names, *home_of})  # what completion and help() show
    return get
