"""Distributions made on the fly, as pip would have installed them: good ones and every kind of broken one."""

from __future__ import annotations

import textwrap
from pathlib import Path

MANIFEST = """
name = "{name}"
api = ">=2.0,<3"
runtime_api = ">=2.0,<3"
provides = ["backend"]
targets = ["cpu"]
summary = "a test backend"
"""

GOOD_PLUGIN = """
from kernelyard.plugins import hookimpl

@hookimpl
def kernelyard_backend():
    from kernelyard.plugins.interfaces.backend import Backend

    class Null(Backend):
        name = "{name}"

        def patterns(self, target):
            return []

        def codegen(self, regions, options):
            raise AssertionError("nothing matches, so nothing is generated")

    return Null()
"""


def install(
    folder: Path,
    name: str,
    *,
    distribution: str | None = None,
    plugin: str = GOOD_PLUGIN,
    manifest: str | None = MANIFEST,
    package: str | None = None,
    version: str = "1.0",
    runtime: str = "",
    others: dict[str, str] | None = None,
) -> None:
    """Put a plugin package and its metadata into `folder`, which must be on `sys.path`.

    runtime: the entry point of its runtime half. others: of other groups, each one's `name = object` of `plugin`.
    """
    distribution = distribution or f"kernelyard-{name}"
    package = package or f"fake_{distribution.replace('-', '_')}"
    home = folder / package
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (home / "plugin.py").write_text(textwrap.dedent(plugin).replace("{name}", name))
    if manifest is not None:
        (home / "manifest.toml").write_text(manifest.replace("{name}", name))
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    entries = f"[kernelyard]\n{name} = {package}.plugin\n"
    entries += f"[kernelyard.runtime]\n{name} = {runtime}\n" if runtime else ""
    for group, entry in (others or {}).items():
        entered, _, value = entry.partition(" = ")
        entries += f"[{group}]\n{entered} = {package}.plugin:{value}\n"
    (info / "entry_points.txt").write_text(entries)
