"""What the tests of the architecture share: the sources, and fresh interpreters."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from distributions import ROOT, Distribution, distributions, plugins

CORE = ROOT / "core" / "src"
TEMPLATE = Distribution(ROOT / "plugins" / "_template")  # there to be copied
DISTRIBUTIONS = (TEMPLATE, *plugins())
PLUGINS = [each for each in DISTRIBUTIONS if "kernelyard" in each.entry_points]
# A plugin whose own requirements are large has an environment of its own.
INSTALLED = [each for each in plugins() if all(find_spec(module) for module in each.modules)]


def sources() -> list[Path]:
    """Every source file of core and plugins."""
    return sorted(
        path for folder in (CORE, *(plugin.source for plugin in DISTRIBUTIONS)) for path in folder.rglob("*.py")
    )


def modules() -> list[str]:
    """Names of every module of core and of the plugins that are installed."""
    found: list[str] = []
    for folder in (CORE, *(plugin.source for plugin in INSTALLED)):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


@cache
def files() -> dict[str, Path]:
    """Every module of core and plugins, by its dotted name."""
    found: dict[str, Path] = {}
    for each in (*distributions(), TEMPLATE):
        for path in each.source.rglob("*.py"):
            parts = path.relative_to(each.source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def tree_of(module: str) -> ast.Module:
    """The syntax tree of a module of ours."""
    return ast.parse(files()[module].read_text(encoding="utf-8"))


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """What the import statements among these nodes import of ours."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{ast.unparse(node)}: a relative name"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in files() else str(node.module) for name in inner)
    return found & set(files())


def fresh(code: str, *arguments: str, stdin: str = "", timeout: float = 60, cwd: Path = ROOT) -> str:
    """The output of Python code in an interpreter of its own, where warnings are errors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(
        command, input=stdin, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
