"""Manifest: what a plugin says of itself in `manifest.toml`, read without running any of its code."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from kernelyard.errors import PluginError
from kernelyard.plugins.hookspecs import API_VERSION, HOOK_OF_PART
from kernelyard.runtime.abi import api_range as runtime_api
from kernelyard.runtime.installed.entry_points import EntryPoint

FILE_NAME = runtime_api.MANIFEST
_FIELDS: dict[str, type] = {
    "name": str,
    "api": str,
    "runtime_api": str,
    "provides": list,
    "targets": list,
    "priority": int,
    "summary": str,
    "needs": list,
    "options": list,
    "suffixes": list,
    "types": list,
    "isolate": bool,
}
_REQUIRED = ("name", "api", "provides")


@dataclass(frozen=True)
class Manifest:
    """A plugin's statement about itself.

    api: the range of plugin API versions that it works with. provides: "backend", "code_generator", "frontend".
    runtime_api: the range of versions of the runtime API that its runtime half works with, "" where it states none.
    priority: higher goes first where the user states no order. needs: libraries, for people. options: the names of the
    compile options that it takes; any other is refused before a compile starts. suffixes, types: the model files and
    objects that its frontend reads, so that it is imported for these before any other; a type is named by its top-level
    package, or as such ("bytes"). isolate: True to have its codegen run in a process of its own.
    """

    name: str
    api: str
    provides: tuple[str, ...]
    targets: tuple[str, ...] = ()
    priority: int = 0
    summary: str = ""
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    runtime_api: str = ""
    isolate: bool = False

    def claims(self, model: object) -> bool:
        """Return True when the frontend states that it reads files or objects of this kind.

        Example:
            >>> Manifest("onnx", ">=1.0", ("frontend",), suffixes=(".onnx",)).claims("models/net.onnx")
            True
        """
        if isinstance(model, (str, os.PathLike)):
            return Path(os.fsdecode(model)).suffix.lower() in self.suffixes
        kind = type(model)
        return kind.__name__ in self.types or kind.__module__.partition(".")[0] in self.types

    @property
    def is_compatible(self) -> bool:
        """True when this core's plugin API is in the plugin's range."""
        return SpecifierSet(self.api).contains(API_VERSION)

    @property
    def wants_newer_core(self) -> bool:
        """True when the plugin's range begins after this core's plugin API."""
        bounds = [Version(each.version) for each in SpecifierSet(self.api) if each.operator in (">=", ">", "~=")]
        return any(bound > Version(API_VERSION) for bound in bounds)


def parse_manifest(text: str, where: str) -> Manifest:
    """Read and check the text of a manifest.

    Raises: PluginError that names the field.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PluginError("the manifest is not valid TOML", where=where, found=error) from error
    for name in _REQUIRED:
        if name not in table:
            raise PluginError(f"the manifest lacks {name!r}", where=where, expected=", ".join(_REQUIRED))
    for name, value in table.items():
        _check_field(name, value, where)
    _check_runtime_api(table.get("runtime_api"), text, where)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
    return Manifest(**values)


def _check_field(name: str, value: Any, where: str) -> None:
    kind = _FIELDS.get(name)
    if kind is None:
        raise PluginError(f"the manifest has an unknown field {name!r}", where=where, expected=", ".join(_FIELDS))
    is_other = isinstance(value, bool) != (kind is bool)
    if not isinstance(value, kind) or is_other or (kind is list and not all(isinstance(item, str) for item in value)):
        expected = "a list of strings" if kind is list else kind.__name__
        raise PluginError(
            f"the manifest's field {name!r} has the wrong type", where=where, found=repr(value), expected=expected
        )
    if name == "provides" and (unknown := set(value) - set(HOOK_OF_PART)):
        raise PluginError(
            "the manifest provides something unknown",
            where=where,
            found=sorted(unknown),
            expected=", ".join(HOOK_OF_PART),
        )
    if name == "api":
        try:
            SpecifierSet(value)
        except InvalidSpecifier as error:
            raise PluginError(
                "the manifest's API range cannot be read", where=where, found=value, expected='">=2.0,<3"'
            ) from error


def _check_runtime_api(stated: str | None, text: str, where: str) -> None:
    """Make sure that `runtime_api` can be read without a TOML parser, as it is when an artifact is loaded."""
    expected = f"runtime_api = {runtime_api.EXAMPLE}"
    if runtime_api.read_range(text) != stated:
        raise PluginError("runtime_api is not on a line of its own in double quotes", where=where, expected=expected)
    try:
        runtime_api.contains(stated or ">=0", runtime_api.RUNTIME_API)
    except ValueError as error:
        message = "the manifest's range of the runtime API cannot be read"
        raise PluginError(message, where=where, found=error, expected=expected) from error


def read_manifest(module: str) -> Manifest:
    """Return the manifest of the plugin module `package.plugin`: `manifest.toml` in the package's folder.

    Nothing of the plugin is imported. Raises: PluginError.
    """
    path = manifest_path(module)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(
            f"the plugin has no readable {FILE_NAME}", where=str(path), found=error, hint="ship it beside plugin.py"
        ) from error
    return parse_manifest(text, str(path))


def manifest_path(module: str) -> Path:
    """Return the expected path of a plugin module's manifest.

    Raises: PluginError when the package is not there.
    """
    folder = EntryPoint("", module).folder
    if folder is None:
        package = module.partition(".")[0]
        raise PluginError(f"the entry point names a package {package!r} that does not exist", found=module)
    return Path(folder, FILE_NAME)
