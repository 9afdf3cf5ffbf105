"""The API of runtime halves: its version in this core, and which versions a plugin's runtime half was written for.

`runtime_api = ">=2.0,<3"` in `manifest.toml`, which lies in the folder of the loader's module, says the latter. It is
read at each load of an artifact, so that nothing of a runtime half runs in a core that it was not written for. That
takes neither a TOML parser nor `packaging`, whose imports take longer than a small program does to load; the compile
half's reading of the manifest makes sure that both read the same.
"""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING

from kernelyard.errors import BackendUnavailableError

if TYPE_CHECKING:
    from kernelyard.runtime.installed.entry_points import EntryPoint

# Of the loader, of `RuntimeModule` and `JSONRuntime`, and of what they take and give: `BindContext`, `BoundTensor`,
# `BoundCall`, `NativeCall`. The second number grows with what is added, the first with what is changed or removed.
RUNTIME_API = "2.1"
MANIFEST = "manifest.toml"
EXAMPLE = '">=2.0,<3"'
_UNSTATED = ">=1.0,<2"  # the range of a runtime half that states none: it was written for the first versions
_HOLDS = {">=": operator.ge, "<": operator.lt}


def read_range(manifest: str) -> str | None:
    """Return the range that the text of a manifest states, None where it states none."""
    for line in manifest.splitlines():
        key, _, value = line.partition("=")
        _, quote, quoted = value.partition('"')
        if key.rstrip() == "runtime_api" and quote:
            return quoted.partition('"')[0]
    return None


def contains(api_range: str, version: str) -> bool:
    """Return True where a version lies in a range of clauses `>=` and `<`.

    Raises: ValueError for a range of another form.

    Example:
        >>> contains(">=2.0,<3", "1.3"), contains(">=1.4,<2", "1.3")
        (True, False)
    """
    return all(_HOLDS[sign](_parse_version(version), bound) for sign, bound in _clauses(api_range))


def check_runtime_api(entry: EntryPoint) -> None:
    """Refuse a runtime half that was written for another version of the API; nothing of it is imported.

    Raises: BackendUnavailableError.
    """
    if entry.module.startswith("kernelyard."):  # the core's own are of its version
        return
    stated = _range_of(entry)
    api_range = stated or _UNSTATED
    try:
        if contains(api_range, RUNTIME_API):
            return
        is_core_older = any(sign == ">=" and _parse_version(RUNTIME_API) < bound for sign, bound in _clauses(api_range))
    except ValueError:
        is_core_older = False
    distribution = entry.dist.name if entry.dist else entry.module
    raise BackendUnavailableError(
        f"the runtime half {entry.name!r} was written for another version of the runtime API",
        where=f"{distribution} {entry.dist.version if entry.dist else ''}".rstrip(),
        found=f"runtime_api = {stated!r}" if stated else f"no runtime_api in its manifest, which counts as {_UNSTATED}",
        expected=f"a range that contains {RUNTIME_API}, this core's",
        hint=f"pip install --upgrade {'kernelyard' if is_core_older else distribution}",
    )


def _range_of(entry: EntryPoint) -> str | None:
    folder = entry.folder
    if folder is None:
        return None
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as manifest:
            return read_range(manifest.read())
    except (OSError, UnicodeDecodeError):  # a runtime half by itself needs no manifest
        return None


def _clauses(api_range: str) -> list[tuple[str, tuple[int, ...]]]:
    clauses = [clause.strip() for clause in api_range.split(",")]
    signs = [next((sign for sign in _HOLDS if clause.startswith(sign)), None) for clause in clauses]
    if None in signs:
        raise ValueError(f"{api_range!r} is no range of versions")
    return [
        (sign, _parse_version(clause.removeprefix(sign))) for sign, clause in zip(signs, clauses, strict=True) if sign
    ]


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
