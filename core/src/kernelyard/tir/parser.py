"""Reads loop-level functions from their text form (see `kernelyard.tir.printer`); nesting is bounded."""

from __future__ import annotations

from kernelyard import dtypes
from kernelyard.dims import Dim
from kernelyard.errors import IRError, ParseError
from kernelyard.ir.scanner import Token
from kernelyard.ir.text_values import ValueParser
from kernelyard.ir.types import TensorType
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import (
    BINARY,
    INDEX,
    UNARY,
    Axis,
    Cast,
    Const,
    DimValue,
    Expr,
    binary,
    const,
    load,
    select,
    unary,
)
from kernelyard.tir.iterate import Iterate, State
from kernelyard.tir.primfunc import REDUCE, SPATIAL, STEP, ComputeBlock, IterVar, PrimFunc
from kernelyard.tir.verify import verify

MAX_DEPTH = 110


def parse_primfunc(text: str) -> PrimFunc:
    """Return the PrimFunc that a text describes, verified: what `print_primfunc` returns, or the whole of a function as
    `to_text` prints it, `primfunc @name { ... }`.

    Raises: ParseError with the line, VerifyError.
    """
    function = _Parser(text).whole()
    verify(function)
    return function


class _Parser(ValueParser):
    def __init__(self, text: str) -> None:
        super().__init__(text, {})
        self.buffers: dict[str, Buffer] = {}
        self.axes: set[str] = set()
        self.states: dict[str, State] = {}

    def whole(self) -> PrimFunc:
        """Return the only function of the text, with its name and braces around it or without."""
        is_named = self.scanner.accept("primfunc")
        if is_named:
            self.scanner.expect("@")
            self.scanner.name()
            self.scanner.expect("{")
        function = self.function()
        if is_named:
            self.scanner.expect("}")
        if self.scanner.peek().kind != "end":
            raise self.scanner.error("the text goes on after the function; parse_module reads several")
        return function

    def function(self) -> PrimFunc:
        attrs = self.attributes() if self.scanner.accept("attrs") else {}
        inputs = self.declarations("input", "global")
        outputs = self.declarations("output", "global")
        locals_ = self.declarations("local", "local")
        blocks: list[ComputeBlock] = []
        while self.scanner.peek().kind != "end" and not self.scanner.at("}"):
            self.scanner.expect("block")
            blocks.append(self.block())
        return PrimFunc((*inputs, *outputs), tuple(blocks), len(outputs), locals_, attrs)

    def declarations(self, word: str, scope: str) -> tuple[Buffer, ...]:
        found: list[Buffer] = []
        while self.scanner.accept(word):
            token = self.scanner.expect_kind("name")
            self.scanner.expect(":")
            type_ = self.type(0)
            if not isinstance(type_, TensorType) or token.text in self.buffers:
                raise self.scanner.error("a buffer is a tensor and is declared once", token)
            buffer = self.buffers[token.text] = Buffer(token.text, type_.shape, type_.dtype, scope)
            found.append(buffer)
        return tuple(found)

    def block(self) -> ComputeBlock:
        name = self.scanner.expect_kind("name").text
        axes = self.block_axes()
        self.axes = {axis.name for axis in axes}
        self.scanner.expect("{")
        output, indices = self.element(self.scanner.expect_kind("name"), 0)
        self.scanner.expect("=")
        body = self.expr(0)
        reducer = self.scanner.expect_kind("name").text if self.scanner.accept("reducer") else None
        init = self.expr(0) if self.scanner.accept("init") else None
        arg = self.expr(0) if self.scanner.accept("arg") else None
        self.scanner.expect("}")
        return ComputeBlock(name, axes, output, indices, body, reducer, init, arg)

    def block_axes(self) -> tuple[IterVar, ...]:
        self.scanner.expect("(")
        axes: list[IterVar] = []
        while not self.scanner.accept(")"):
            kind = next((word for word in (REDUCE, STEP) if self.scanner.accept(word)), SPATIAL)
            name = self.scanner.expect_kind("name").text
            self.scanner.expect(":")
            axes.append(IterVar(name, self.extent(), kind))
            if not self.scanner.at(")"):
                self.scanner.expect(",")
        return tuple(axes)

    def extent(self) -> Dim:
        token = self.scanner.peek()
        return self.dim(self.scanner.take().text[1:-1], token) if token.kind == "dim" else self.integer()

    def element(self, token: Token, depth: int) -> tuple[Buffer, tuple[Expr, ...]]:
        buffer = self.buffers.get(token.text)
        if buffer is None:
            raise self.scanner.error("no buffer has this name", token)
        self.scanner.expect("[")
        return buffer, self.exprs("]", depth)

    def exprs(self, closing: str, depth: int) -> tuple[Expr, ...]:
        found: list[Expr] = []
        while not self.scanner.accept(closing):
            found.append(self.expr(depth + 1))
            if not self.scanner.at(closing):
                self.scanner.expect(",")
        return tuple(found)

    def expr(self, depth: int) -> Expr:
        token = self.scanner.peek()
        if depth > MAX_DEPTH:
            raise self.scanner.error("an expression is nested too deeply")
        if token.kind == "dim":
            return DimValue(self.dim(self.scanner.take().text[1:-1], token))
        if token.kind == "number" or token.text in ("true", "false"):
            return self.literal_of(None)
        self.scanner.expect_kind("name")
        try:
            return self.parse_named(token, depth)
        except ParseError:
            raise
        except IRError as error:
            raise self.scanner.error(f"{error.message} ({error.found})", token) from error

    def parse_named(self, token: Token, depth: int) -> Expr:
        """Return an expression that begins with a name: a load, an operation, a literal with its dtype, or an axis."""
        name = token.text
        if self.scanner.at("["):
            return load(*self.element(token, depth))
        if not self.scanner.accept("("):
            if name in self.states:
                return self.states[name]
            if name not in self.axes:
                raise self.scanner.error("no axis has this name", token)
            return Axis(name)
        if name in dtypes.DTYPES:
            value = self.literal_of(name)
            self.scanner.expect(")")
            return value
        if name == "cast":
            dtype = self.dtype()
            return Cast(self.operands(token, 1, depth)[0], dtype)
        return self.iterate(token, depth) if name == "iterate" else self.operation(token, depth)

    def dtype(self) -> str:
        """Return a dtype that a comma follows."""
        token = self.scanner.expect_kind("name")
        self.scanner.expect(",")
        if token.text not in dtypes.DTYPES:
            raise self.scanner.error("unknown dtype", token)
        return token.text

    def iterate(self, token: Token, depth: int) -> Expr:
        """Return a loop: its dtype, the name of its state, the number of steps, the first value and the body."""
        dtype, name = self.dtype(), self.scanner.expect_kind("name")
        if name.text in self.states or name.text in self.axes:
            raise self.scanner.error("a state has the name of another value", name)
        self.scanner.expect(",")
        count = self.integer()
        self.scanner.expect(",")
        state = self.states[name.text] = State(name.text, dtype)
        init, body = self.operands(token, 2, depth)
        del self.states[name.text]
        return Iterate(state, init, body, count)

    def operation(self, token: Token, depth: int) -> Expr:
        name = token.text
        if name in UNARY:
            return unary(name, *self.operands(token, 1, depth))
        if name in BINARY:
            return binary(name, *self.operands(token, 2, depth))
        if name == "select":
            return select(*self.operands(token, 3, depth))
        raise self.scanner.error("no scalar operator has this name", token)

    def operands(self, token: Token, count: int, depth: int) -> tuple[Expr, ...]:
        found = self.exprs(")", depth)
        if len(found) != count:
            raise self.scanner.error(f"{token.text} takes {count} operands, not {len(found)}", token)
        return found

    def literal_of(self, dtype: str | None) -> Expr:
        token = self.scanner.peek()
        value = self.number()
        stated = dtype or ("bool" if isinstance(value, bool) else INDEX)
        if isinstance(value, float) and not dtypes.is_float(stated):
            raise self.scanner.error(f"this is no {stated}", token)
        found = const(value, stated)
        if isinstance(found, Const) and repr(found.value) != repr(value) and not dtypes.is_float(stated):
            raise self.scanner.error(f"this is no {stated}", token)
        return found
