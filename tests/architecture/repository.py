"""What the tests of the architecture share: the sources, and fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from distributions import ROOT, Distribution, plugins

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


def fresh(code: str, *arguments: str, timeout: float = 60, cwd: Path = ROOT) -> str:
    """The output of Python code in an interpreter of its own, where warnings are errors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNELYARD_")}
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
