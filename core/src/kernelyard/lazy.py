"""Import on demand: front doors by name (PEP 562), and the modules that fill a registry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(module: str, names_of: Mapping[str, str], is_all: bool = False) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that gives names of other modules; its `__dir__` is set to list them.

    names_of: for each module, the names that it has, separated by spaces. is_all: these are all of the module, and
    `__all__` is set, too, from which help() lists them.

    Example:
        >>> get = lazy_names("kernelyard.lazy", {"kernelyard.errors": "KernelyardError PassError"})
        >>> get("PassError").__name__
        'PassError'
    """
    module_of = {name: each for each, names in names_of.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = import_module(module_of[name])
        value = getattr(found, name) if hasattr(found, name) else import_module(f"{module_of[name]}.{name}")
        setattr(sys.modules[module], name, value)  # the next use finds it without this function
        return value

    names = vars(sys.modules[module])
    names["__dir__"] = lambda: sorted({*names, *module_of})  # what completion shows
    if is_all:
        names["__all__"] = sorted(module_of)
    return get


class RegistryModules:
    """Import the modules that fill a registry one after another, until one has registered what is looked up.

    names: those wanted most often first. waiting: the modules not imported yet. What a module registers under one key
    stands in no other module, so that their order never decides what is found.

    Example:
        >>> modules = RegistryModules("kernelyard.legalize", ("elementwise", "shape"))
        >>> modules.import_until(lambda: True)  # it is there already: nothing is imported
    """

    def __init__(self, package: str, names: Sequence[str]) -> None:
        self.waiting = [f"{package}.{name}" for name in names]

    def import_until(self, is_registered: Callable[[], bool]) -> None:
        """Import until that holds, at worst all of them."""
        for module in tuple(self.waiting):
            if is_registered():
                return
            import_module(module)  # in a second thread this waits for the first one's
            if module in self.waiting:
                self.waiting.remove(module)

    def import_all(self) -> None:
        """Import those that are left, to list what there is."""
        self.import_until(lambda: False)
