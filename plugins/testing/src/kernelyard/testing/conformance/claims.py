"""Claims: what a plugin says that its backend can do, in `conformance.toml` beside its manifest."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.dtypes import DTYPES
from kernelyard.errors import PluginError, UnknownBackendError, UnknownOpError
from kernelyard.ir import get_op
from kernelyard.plugins.discovery.manager import GROUP
from kernelyard.plugins.interfaces.manifest import manifest_path
from kernelyard.runtime.installed.entry_points import find
from kernelyard.testing.conformance.layouts import LAYOUTS

FILE_NAME = "conformance.toml"
OUTCOMES = ("declined", "differs")  # what a gap may excuse; an error or a crash never
SYMBOLIC = ("leading", "all")
OPERANDS = ("bias", "channels", "scalar", "residual")
STORED = ("uint8", "int8")
_FIELDS = ("dtypes", "ops", "op_dtypes", "layouts", "fused", "quantized", "stored", "symbolic", "gaps")


@dataclass(frozen=True)
class Gap:
    """Cases that do not hold, by a glob over their names, and why; it must be removed once one of them holds.

    outcome: "declined" when the backend does not take them, "differs" when its numbers are not the reference's.
    """

    cases: str
    reason: str
    outcome: str = "declined"


@dataclass(frozen=True)
class Claims:
    """The claims of a backend: the operators, dtypes and fusions that it takes.

    ops: operators with their dtypes: every sample of these dtypes, with parameters and constant operands.
    layouts: how operands may lie in memory and come about, of `kernelyard.testing.conformance.layouts`. fused: chains
    that become one composite, as in `("matmul", "add bias", "nn.relu")`. quantized: chains that become one composite
    with integers for data, weights and result; stored: the dtypes of data and result. symbolic: which sizes may be
    unknown when it compiles, of "leading" (the first axis of the first operand) and "all".
    """

    ops: dict[str, tuple[str, ...]]
    fused: tuple[tuple[str, ...], ...] = ()
    symbolic: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    layouts: tuple[str, ...] = LAYOUTS
    quantized: tuple[tuple[str, ...], ...] = ()
    stored: tuple[str, ...] = STORED

    def gap_of(self, case: str) -> Gap | None:
        """Return the gap that excuses a case."""
        return next((gap for gap in self.gaps if fnmatchcase(case, gap.cases)), None)


def parse_claims(text: str, where: str) -> Claims:
    """Read and check the text of a claims file.

    Raises: PluginError that names the field.
    """
    table = _table(text, where)
    dtypes = _strings(table, "dtypes", where, tuple(DTYPES))
    ops = _strings(table, "ops", where)
    quantized = tuple(_chain(text, where) for text in _strings(table, "quantized", where))
    if not (ops and dtypes) and not quantized:
        expected = "'ops' and 'dtypes', or 'quantized'"
        raise PluginError("the claims lack operators or dtypes", where=where, expected=expected)
    own = table.get("op_dtypes", {})
    by_op = dict.fromkeys(ops, dtypes) | {op: _strings(own, op, where, tuple(DTYPES)) for op in own}
    fused = tuple(_chain(text, where) for text in _strings(table, "fused", where))
    for op in (*by_op, *(piece.split()[0] for chain in (*fused, *quantized) for piece in chain)):
        _check_op(op, where)
    gaps = tuple(_gap(entry, where) for entry in table.get("gaps", []))
    layouts = _strings(table, "layouts", where, LAYOUTS) if "layouts" in table else LAYOUTS
    stored = _strings(table, "stored", where, STORED) if "stored" in table else STORED
    return Claims(by_op, fused, _strings(table, "symbolic", where, SYMBOLIC), gaps, layouts, quantized, stored)


def _table(text: str, where: str) -> dict[str, Any]:
    """Return the fields, of which some are checked. Raises: PluginError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PluginError("the claims are not valid TOML", where=where, found=error) from error
    for name in table:
        if name not in _FIELDS:
            raise PluginError(f"the claims have an unknown field {name!r}", where=where, expected=", ".join(_FIELDS))
    if not isinstance(table.get("op_dtypes", {}), dict):
        raise PluginError("'op_dtypes' is not a table", where=where, expected='matmul = ["float32"]')
    return table


def _strings(table: dict[str, Any], name: str, where: str, choices: tuple[str, ...] = ()) -> tuple[str, ...]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PluginError(f"{name!r} has the wrong type", where=where, found=repr(value), expected="a list of strings")
    unknown = [item for item in value if choices and item not in choices]
    if unknown:
        raise PluginError(f"{name!r} has an unknown entry", where=where, found=unknown[0], expected=", ".join(choices))
    return tuple(value)


def _chain(text: str, where: str) -> tuple[str, ...]:
    """`matmul, add bias, nn.relu` in pieces; the second word of one is its other operand."""
    pieces = tuple(piece.strip() for piece in text.split(","))
    words = [piece.split() for piece in pieces]
    is_sound = all(words) and len(words[0]) == 1 and all(len(w) == 1 or w[1:] in [[o] for o in OPERANDS] for w in words)
    if "dequantize" in (words[0] or [""])[0]:
        hint = "write the operators in between alone, as an entry of 'quantized'"
        raise PluginError("a fused chain begins with dequantize", where=where, found=text, hint=hint)
    if not is_sound:
        expected = f"operators, the later ones with one of {', '.join(OPERANDS)} where they have two operands"
        raise PluginError("a fused chain cannot be read", where=where, found=text, expected=expected)
    return pieces


def _check_op(name: str, where: str) -> None:
    try:
        get_op(name)
    except UnknownOpError as error:
        raise PluginError("the claims name an unknown operator", where=where, found=name, hint=error.hint) from error


def _gap(entry: Any, where: str) -> Gap:
    if not isinstance(entry, dict) or not {"cases", "reason"} <= set(entry) <= {"cases", "reason", "outcome"}:
        expected = "'cases', 'reason' and perhaps 'outcome'"
        raise PluginError("a gap cannot be read", where=where, found=entry, expected=expected)
    gap = Gap(**entry)
    if gap.outcome not in OUTCOMES or not gap.reason.strip():
        expected = f"an outcome of {', '.join(OUTCOMES)}, and a reason"
        raise PluginError("a gap cannot be read", where=where, found=entry, expected=expected)
    return gap


def claims_path(backend: str) -> Path:
    """Return the expected path of an installed plugin's claims; nothing of it is imported.

    Raises: UnknownBackendError.
    """
    entries = [entry for entry in find(GROUP).entries if entry.name == backend]
    if not entries:
        raise UnknownBackendError(
            f"no installed plugin is called {backend!r}", hint=f"pip install kernelyard-{backend}"
        )
    return manifest_path(entries[0].module).with_name(FILE_NAME)


def read_claims(backend: str) -> Claims:
    """Read the claims of an installed plugin.

    Raises: UnknownBackendError, PluginError.
    """
    path = claims_path(backend)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = "ship it beside manifest.toml; docs/writing-a-backend.md has its fields"
        raise PluginError(f"the plugin has no readable {FILE_NAME}", where=str(path), found=error, hint=hint) from error
    return parse_claims(text, str(path))
