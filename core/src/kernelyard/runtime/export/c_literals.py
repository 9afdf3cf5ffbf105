"""Python values as C literals."""

from __future__ import annotations

from collections.abc import Iterable


def string(text: str) -> str:
    """Return a C string literal: ASCII as it is, other bytes as octal escapes.

    Example:
        >>> string('a "b"')
        '"a \\\\042b\\\\042"'
    """
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'


def array(type_: str, items: Iterable[str]) -> str:
    """Return a constant array as an expression; C has no empty ones.

    Example:
        >>> array("int", ["1", "2"]), array("int", [])
        ('(const int[]){1, 2}', 'NULL')
    """
    listed = ", ".join(items)
    return f"(const {type_}[]){{{listed}}}" if listed else "NULL"


def table(type_: str, name: str, rows: Iterable[str]) -> str:
    """Return the definition of a constant array.

    Example:
        >>> print(table("int", "primes", ["2", "3"]))
        static const int primes[] = {
          2,
          3
        };
    """
    listed = ",\n  ".join(rows)
    return f"static const {type_} {name}[] = {{\n  {listed}\n}};" if listed else f"static const {type_} {name}[1];"
