"""What the tests of the architecture share: the sources, and fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "src"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))


def package_of(plugin: Path) -> Path:
    """The folder of a plugin's package."""
    (package,) = (plugin / "src").glob("kernelyard_*")
    return package


# The template is there to be copied, and a plugin whose own requirements are large has an environment of its own.
INSTALLED = [plugin for plugin in PLUGINS if find_spec(package_of(plugin).name)]


def sources() -> list[Path]:
    """Every source file of core and plugins."""
    return sorted(path for folder in (CORE, *(p / "src" for p in PLUGINS)) for path in folder.rglob("*.py"))


def modules() -> list[str]:
    """Names of every module of core and of the plugins that are installed."""
    found: list[str] = []
    for folder in (CORE, *(plugin / "src" for plugin in INSTALLED)):
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
