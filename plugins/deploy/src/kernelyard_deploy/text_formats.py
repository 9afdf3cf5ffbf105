"""Write the text formats of other systems: YAML and protocol buffers' text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def to_yaml(value: Any, indent: int = 0) -> str:
    """Return a value as YAML: mappings and sequences in blocks, all else as JSON, which YAML reads.

    Example:
        >>> print(to_yaml({"name": "m", "shape": [1, 2]}), end="")
        "name": "m"
        "shape":
          - 1
          - 2
    """
    margin = " " * indent
    if isinstance(value, Mapping):
        pairs = ((f"{margin}{json.dumps(str(key))}:", item) for key, item in value.items())
    else:
        pairs = ((f"{margin}-", item) for item in value)
    return "".join(head + _value(item, indent + 2) for head, item in pairs)


def _value(value: Any, indent: int) -> str:
    if value and isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return f"\n{to_yaml(value, indent)}"
    return f" {json.dumps(value, ensure_ascii=False)}\n"


class Message(list[tuple[str, Any]]):
    """List the fields of a protocol buffer, in order; a repeated field has an entry for each value."""


class Enumerator(str):
    """Mark a value of an enumeration, which is written without quotes."""


def to_pbtxt(message: Message, indent: int = 0) -> str:
    """Return a message in protocol buffers' text format.

    Example:
        >>> print(to_pbtxt(Message([("name", "m"), ("kind", Enumerator("KIND_CPU"))])), end="")
        name: "m"
        kind: KIND_CPU
    """
    margin = " " * indent
    lines: list[str] = []
    for name, value in message:
        if isinstance(value, Message):
            lines.append(f"{margin}{name} {{\n{to_pbtxt(value, indent + 2)}{margin}}}\n")
        else:
            lines.append(f"{margin}{name}: {value if isinstance(value, Enumerator) else _text(value)}\n")
    return "".join(lines)


def _text(value: Any) -> str:
    return f"[ {', '.join(map(str, value))} ]" if isinstance(value, list) else json.dumps(value)
