"""The table of converters: (domain, operator) -> converters by the opset version from which each applies."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from kernelyard_onnx.converters import FAMILIES
from kernelyard_onnx.values import Value

if TYPE_CHECKING:
    from kernelyard_onnx.node import Node

Results: TypeAlias = "Value | Sequence[Value | None]"
Converter: TypeAlias = "Callable[[Node], Results]"
Kept = TypeVar("Kept", bound="Callable[[Node], Results]")

MICROSOFT = "com.microsoft"  # what onnxruntime's optimizers and quantizers write into models
LEARNING = "ai.onnx.ml"  # the standard's operators for classical models
TEXT = "text"  # a domain of ours: what standard operators do with text

_CONVERTERS: dict[tuple[str, str], list[tuple[int, Converter]]] = {}


def register(op_type: str, function: Converter, since: int = 1, domain: str = "") -> None:
    """Add a converter that applies from opset `since` on, until a later one takes over."""
    bisect.insort(_CONVERTERS.setdefault((domain, op_type), []), (since, function), key=lambda entry: entry[0])


def converter(*op_types: str, since: int = 1, domain: str = "") -> Callable[[Kept], Kept]:
    """Register a converter for one or several operators: the decorator form of `register`."""

    def add(function: Kept) -> Kept:
        for op_type in op_types:
            register(op_type, function, since, domain)
        return function

    return add


def find(domain: str, op_type: str, opset: int) -> Converter | None:
    """Return the converter of an operator in an opset, or None."""
    entries = _entries(domain, op_type)
    position = bisect.bisect_right(entries, opset, key=lambda entry: entry[0])
    return entries[position - 1][1] if position else None


def oldest(domain: str, op_type: str) -> int | None:
    """Return the first opset in which an operator has a converter, or None."""
    entries = _entries(domain, op_type)
    return entries[0][0] if entries else None


def operators(domain: str = "") -> tuple[str, ...]:
    """Return the names of all operators of a domain that have a converter."""
    FAMILIES.import_all()
    return tuple(sorted(op_type for d, op_type in _CONVERTERS if d == domain))


def _entries(domain: str, op_type: str) -> Sequence[tuple[int, Converter]]:
    key = (domain, op_type)
    FAMILIES.import_until(lambda: key in _CONVERTERS)
    return _CONVERTERS.get(key, ())
