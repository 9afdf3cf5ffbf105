"""Read which distributions this repository holds: the one source of every list of plugins.

A distribution is a folder of `plugins/` with a `pyproject.toml`; a folder that begins with `_` is there to be copied.
`python tools/distributions.py` prints the folders for pip; `--all` adds those that `make test` does without.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = "src"


@dataclass(frozen=True)
class Distribution:
    """One `pyproject.toml`, and the source files that its wheel holds."""

    folder: Path

    @cached_property
    def _pyproject(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))

    @property
    def project(self) -> dict[str, Any]:
        """The table `project`: name, description, dependencies."""
        return self._pyproject["project"]

    @property
    def name(self) -> str:
        return self.project["name"]

    @property
    def entry_points(self) -> dict[str, dict[str, str]]:
        """The entry points that the distribution registers, by group and name."""
        return self.project.get("entry-points", {})

    @property
    def optional(self) -> bool:
        """True where `make test` does without it: `optional = true` in the table `tool.kernelyard`."""
        return self._pyproject.get("tool", {}).get("kernelyard", {}).get("optional", False)

    @property
    def packages(self) -> tuple[Path, ...]:
        """The folders of the packages in the wheel; hatchling's own default where the project names none."""
        wheel = self._pyproject.get("tool", {}).get("hatch", {}).get("build", {}).get("targets", {}).get("wheel", {})
        named = wheel.get("packages", [f"{SOURCE}/{self.name.replace('-', '_')}"])
        return tuple(self.folder / package for package in named)

    @property
    def modules(self) -> tuple[str, ...]:
        """The dotted names of the packages, as they are imported."""
        inside = (PurePosixPath(package.relative_to(self.folder)).parts for package in self.packages)
        return tuple(".".join(parts[parts.index(SOURCE) + 1 :]) for parts in inside)

    @property
    def source(self) -> Path:
        """The folder that the packages are imported from."""
        (folder,) = {
            package.parents[name.count(".")] for package, name in zip(self.packages, self.modules, strict=True)
        }
        return folder

    @property
    def manifest(self) -> dict[str, Any] | None:
        """The manifest (`manifest.toml`); None for a distribution that is no plugin.

        The manifest of a library states only the runtime API that its modules work with.
        """
        for package in self.packages if "kernelyard" in self.entry_points else ():
            if (path := package / "manifest.toml").exists():
                return tomllib.loads(path.read_text(encoding="utf-8"))
        return None

    @property
    def summary(self) -> str:
        """One line on what it brings."""
        return (self.manifest or {}).get("summary", self.project["description"])


def core(root: Path = ROOT) -> Distribution:
    """Return the distribution `kernelyard`."""
    return Distribution(root)


def plugins(root: Path = ROOT) -> tuple[Distribution, ...]:
    """Return the distributions of `plugins/`, by the names of their folders."""
    folders = (path.parent for path in sorted(root.glob("plugins/*/pyproject.toml")))
    return tuple(Distribution(folder) for folder in folders if not folder.name.startswith("_"))


def distributions(root: Path = ROOT) -> tuple[Distribution, ...]:
    """Return the core and the plugins."""
    return (core(root), *plugins(root))


if __name__ == "__main__":
    chosen = [each for each in plugins() if not each.optional or "--all" in sys.argv[1:]]
    print(*(f"./{each.folder.relative_to(ROOT).as_posix()}" for each in chosen))
