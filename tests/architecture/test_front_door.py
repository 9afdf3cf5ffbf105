"""What plugins import of the core: the three front doors, and few modules beside them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import re
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from distributions import Distribution
from repository import PLUGINS

DOORS = ("kernelyard.plugins.api", "kernelyard.plugins.codegen_api", "kernelyard.runtime.api")
BESIDE = {"kernelyard", "kernelyard.errors", "kernelyard.dims", "kernelyard.dtypes", "kernelyard.ops"}
# What brings passes under TVM's names takes the compiler's own passes apart, and is released together with the core.
INSIDERS = {"tvm-compat"}


def held() -> list[Distribution]:
    """The plugins that are held to the front doors, the template included: all that register something."""
    return [each for each in PLUGINS if each.manifest and each.folder.name not in INSIDERS]


def imported(path: Path) -> Iterator[str]:
    """The modules of the core that a file imports, its docstrings' examples left out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "kernelyard")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kernelyard":
            yield str(node.module)


@pytest.mark.parametrize("plugin", held(), ids=lambda each: each.folder.name)
def test_plugins_come_in_by_the_front_doors(plugin: Distribution) -> None:
    own = tuple(f"kernelyard.{path.parent.name}" for path in plugin.source.glob("kernelyard/*/__init__.py"))
    back_doors = {
        f"{path.relative_to(plugin.folder)}: {module}"
        for path in plugin.source.rglob("*.py")
        for module in imported(path)
        if module not in (*DOORS, *BESIDE) and not module.startswith(own or "-")
    }
    assert back_doors == set()


def test_runtime_halves_import_nothing_of_the_compiler() -> None:
    halves = [path for plugin in held() for path in plugin.source.rglob("runtime.py")]
    assert len(halves) > 6
    assert {module for path in halves for module in imported(path)} <= {"kernelyard.runtime.api", *BESIDE}


# --- what the doors promise -------------------------------------------------------------------------------------------
def names_of(door: ModuleType) -> dict[str, Any]:
    return {name: getattr(door, name) for names in door._HOME.values() for name in names.split()}


def promise(name: str, value: Any) -> list[str]:
    """Return lines that change when a plugin may notice: signatures, public methods and attributes, values."""
    if inspect.isclass(value) and not isinstance(value, EnumType):
        members = (
            m for base in reversed(value.__mro__) if base.__module__.startswith("kernelyard") for m in vars(base)
        )
        public = [m for m in dict.fromkeys(members) if not m.startswith("_")]
        return [f"class {name}{_signature(value)}", *(f"    {line}" for m in public for line in _member(value, m))]
    if callable(value) and hasattr(value, "__name__"):
        return [f"def {name}{_signature(value)}"]
    return [f"{name}: {type(value).__name__}"]


def _member(owner: type, name: str) -> list[str]:
    value = inspect.getattr_static(owner, name)
    if isinstance(value, (property, staticmethod, classmethod)) or inspect.isfunction(value):
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        kind = "" if inspect.isfunction(value) else f"{type(value).__name__} "
        abstract = "abstract " if getattr(value, "__isabstractmethod__", False) else ""
        return [f"{abstract}{kind}{name}{_signature(function)}"]
    return [name]


def _signature(function: Any) -> str:
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(function)))
    except ValueError:
        return "(...)"


@pytest.mark.parametrize("door", DOORS)
def test_the_promise_of_a_front_door(door: str, golden: Any) -> None:
    """A change of these texts is one of the API: docs/compatibility.md says which of the version's numbers it raises."""
    names = names_of(importlib.import_module(door))
    golden.check("\n".join(line for name in sorted(names) for line in promise(name, names[name])) + "\n")


@pytest.mark.parametrize("door", DOORS)
def test_people_at_a_prompt_see_all_of_it(door: str) -> None:
    module = importlib.import_module(door)
    assert set(names_of(module)) <= set(dir(module))
    text = pydoc.render_doc(module, renderer=pydoc.plaintext)
    classes = [name for name, value in names_of(module).items() if isinstance(value, type)]
    assert classes
    assert not [name for name in classes if not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize("door", DOORS)
def test_what_type_checkers_see_is_what_there_is(door: str) -> None:
    module = importlib.import_module(door)
    tree = ast.parse(inspect.getsource(module))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == {name: home for home, names in module._HOME.items() for name in names.split()}
