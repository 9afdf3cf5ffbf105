"""Writer: lines of C text, indented, with names that are not taken yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Writer:
    """Example:
    >>> writer = Writer()
    >>> with writer.block("if (x)"):
    ...     name = writer.define("float", "1.0f")
    >>> print(writer.text)
    if (x) {
      const float v0 = 1.0f;
    }
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """Write a line at the current indentation."""
        self._lines.append("  " * self._depth + text)

    def fresh(self, prefix: str = "v") -> str:
        """Return a name that nothing has."""
        self._names += 1
        return f"{prefix}{self._names - 1}"

    def define(self, type_: str, text: str) -> str:
        """Return a new constant; its name."""
        name = self.fresh()
        self.line(f"const {type_} {name} = {text};")
        return name

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write a block in braces behind `head`; its body is what is written inside of the context."""
        self.line(f"{head} {{".lstrip())
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self._lines)
