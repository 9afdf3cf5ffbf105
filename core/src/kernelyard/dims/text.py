"""Reading dims back from text, such as an artifact's: bounded in length, depth and size."""

from __future__ import annotations

import re
from functools import lru_cache

from kernelyard.dims.expression import BUILDERS, Dim, floordiv, symbol
from kernelyard.errors import ParseError

_TOKEN = r"(\d+|[A-Za-z_][A-Za-z0-9_.]*|//|[-+*(),%])|(\S)"
MAX_TEXT = 4096
MAX_DEPTH = 60
MAX_GROUPS = 1024
# What stood in parentheses, by its tokens and depth: the sizes of a program are sums and products of few groups.
_GROUPS: dict[tuple[int, tuple[str, ...]], Dim] = {}


def is_identifier(text: str) -> bool:
    """Return True for a name of a symbol: letters, digits, `_` and `.`; it begins with none of digits and `.`.

    Example:
        >>> is_identifier("batch.1"), is_identifier("1.batch")
        (True, False)
    """
    return text.isascii() and text[:1] != "." and text.replace(".", "_").isidentifier()


@lru_cache(1024)  # the tensors of a program share few sizes
def parse(text: str) -> Dim:
    """Read a dim back from its printed form.

    Raises: ParseError; the text is bounded in length and in nesting.

    Example:
        >>> parse("(h + 1) // 2 * 4")
        ((h + 1) // 2) * 4
    """
    if len(text) > MAX_TEXT:
        raise ParseError("dimension text is too long", found=f"{len(text)} characters", expected=f"at most {MAX_TEXT}")
    if is_identifier(text):  # most are
        return symbol(text)
    parser = _Parser(text)
    dim = parser.sum(0)
    if parser.peek():
        raise parser.error("end of text")
    return dim


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        token = re.compile(_TOKEN)  # not when this is imported: it takes long
        found = token.findall(text)
        if any(wrong for _, wrong in found):
            column = next(match.start() for match in token.finditer(text) if match[2]) + 1
            raise ParseError("a dimension has an unexpected character", where=f"column {column} of {text!r}")
        self.tokens: list[str] = [right for right, _ in found]
        self.index = 0

    def peek(self) -> str:
        return self.tokens[self.index] if self.index < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.index += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            self.index -= 1
            raise self.error(repr(token))

    def error(self, expected: str) -> ParseError:
        return ParseError(
            "a dimension cannot be read", where=repr(self.text), found=self.peek() or "end", expected=expected
        )

    def sum(self, depth: int) -> Dim:
        value = self.term(depth)
        while self.peek() in ("+", "-"):
            value = value + self.term(depth) if self.take() == "+" else value - self.term(depth)
        return value

    def term(self, depth: int) -> Dim:
        value = self.factor(depth)
        while self.peek() in ("*", "//", "%"):
            operator = self.take()
            right = self.factor(depth)
            value = value * right if operator == "*" else floordiv(value, right) if operator == "//" else value % right
        return value

    def factor(self, depth: int) -> Dim:
        if depth > MAX_DEPTH:
            raise ParseError(
                "a dimension is nested too deeply", where=repr(self.text[:80]), expected=f"at most {MAX_DEPTH}"
            )
        token = self.take()
        if token == "-":
            return self.factor(depth + 1) * -1
        if token == "(":
            return self.group(depth + 1)
        if token.isdigit():
            return int(token)
        if not is_identifier(token):
            self.index -= 1
            raise self.error("a number, a name or '('")
        if self.peek() != "(":
            return symbol(token)
        if token not in ("max", "min", "broadcast"):
            raise self.error("max, min or broadcast")
        self.expect("(")
        left = self.sum(depth + 1)
        self.expect(",")
        right = self.sum(depth + 1)
        self.expect(")")
        return BUILDERS[token](left, right)

    def group(self, depth: int) -> Dim:
        """Return what stands between the parenthesis that was taken and the one that closes it."""
        key = depth, tuple(self.tokens[self.index : self.closing()])
        value = _GROUPS.get(key)
        if value is None:
            value = self.sum(depth)
            if len(_GROUPS) >= MAX_GROUPS:
                _GROUPS.clear()
            _GROUPS[key] = value
        else:
            self.index += len(key[1])
        self.expect(")")
        return value

    def closing(self) -> int:
        """Return the index of the parenthesis that closes the one that was taken; that of the end where none does."""
        nesting = 1
        for index in range(self.index, len(self.tokens)):
            nesting += {"(": 1, ")": -1}.get(self.tokens[index], 0)
            if not nesting:
                return index
        return len(self.tokens)
