"""Tokens of the IR's text form, read one at a time, with errors that show the line."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from kernelyard.errors import ParseError

_TOKEN = re.compile(
    r"""(?:[ \t\r\n]+|//[^\n]*)*+
    (?:(?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*")
      | (?P<dim><[^<>\n]*>)
      | (?P<arrow>->)
      | (?P<number>-?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?![A-Za-z_])|inf\b|nan\b))
      | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
      | (?P<mark>[()\[\]{}:,=@%])
      | (?P<end>\Z)
      | (?P<unexpected>.))
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A piece of text: `kind` is string, dim, arrow, number, name, mark or end."""

    kind: str
    text: str
    start: int
    end: int


class Scanner:
    """Reads tokens from a text; `peek` looks at the next one, `take` moves past it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._next = self._scan(0)

    def peek(self) -> Token:
        return self._next

    def take(self) -> Token:
        token = self._next
        self._next = self._scan(token.end)
        return token

    def at(self, text: str) -> bool:
        """Return True when the next token is this mark, arrow or name."""
        return self._next.text == text and self._next.kind != "string"

    def accept(self, text: str) -> bool:
        """Move past the next token if it is this one."""
        if not self.at(text):
            return False
        self.take()
        return True

    def expect(self, text: str) -> Token:
        if not self.at(text):
            raise self.error(f"expected {text!r}")
        return self.take()

    def expect_kind(self, kind: str) -> Token:
        if self._next.kind != kind:
            raise self.error(f"expected a {kind}")
        return self.take()

    def string(self) -> str:
        """Return the value of a quoted string."""
        token = self.expect_kind("string")
        try:
            return json.loads(token.text)
        except ValueError as error:
            raise self.error(f"a string cannot be read: {error}", token) from error

    def name(self) -> str:
        """Return a name, plain or quoted."""
        return self.string() if self._next.kind == "string" else self.expect_kind("name").text

    def skip_to(self, position: int) -> None:
        """Go on reading at a position of the text."""
        self._next = self._scan(position)

    def error(self, message: str, token: Token | None = None) -> ParseError:
        """Return an error at a token (the next one by default)."""
        token = token or self._next
        line = self.text.count("\n", 0, token.start) + 1
        begin = self.text.rfind("\n", 0, token.start) + 1
        shown = self.text[begin : begin + 160].split("\n", 1)[0]
        return ParseError(
            f"the IR text cannot be read: {message}",
            where=f"line {line}: {shown.strip()}",
            found="end of text" if token.kind == "end" else repr(token.text[:40]),
        )

    def _scan(self, position: int) -> Token:
        match = _TOKEN.match(self.text, position)
        assert match is not None  # anything matches
        assert match.lastgroup is not None
        kind = match.lastgroup
        token = Token(kind, match.group(kind), match.start(kind), match.end())
        if kind == "unexpected":
            raise self.error("an unexpected character", token)
        return token
