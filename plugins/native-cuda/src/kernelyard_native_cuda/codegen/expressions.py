"""Scalar expressions of loop-level code as CUDA source, for one point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from kernelyard.dims import Dim
from kernelyard.errors import CodegenError
from kernelyard.plugins.codegen_api import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    DimValue,
    Expr,
    Iterate,
    Load,
    Select,
    Unary,
    is_index,
    walk,
)
from kernelyard_native_cuda.codegen import operations
from kernelyard_native_cuda.codegen.types import computed_type, is_narrow_float, literal, stored_type
from kernelyard_native_cuda.codegen.writer import Writer

MOST_DEPTH = 24  # of nested text: deeper parts get names
_INDEX_INFIX = {"add": "+", "sub": "-", "mul": "*"}


class Parameters(Protocol):
    """The parameters of a kernel. is_approximate: whether values need be no more exact than narrow floats are."""

    is_approximate: bool

    def dim(self, dim: Dim) -> str:
        """Return the text of a dim, which may be symbolic."""
        ...

    def tensor(self, buffer: Buffer) -> str:
        """Return the name of a tensor's memory."""
        ...


# `keeper(expressions, indices)`: the text of an element of a buffer that is not kept in memory.
Keeper: TypeAlias = "Callable[[Expressions, Sequence[Expr]], str]"


class Expressions:
    """Writes expressions where axes have the given texts.

    known: texts of expressions that are at hand already. kept: buffers whose elements are kept as they are computed, in
    shared memory.
    """

    def __init__(
        self,
        writer: Writer,
        parameters: Parameters,
        axes: Mapping[str, str],
        known: Mapping[Expr, str] | None = None,
        kept: Mapping[Buffer, Keeper] | None = None,
    ) -> None:
        self.writer = writer
        self.parameters = parameters
        self.axes = dict(axes)
        self.known: dict[Expr, str] = dict(known or {})
        self.kept = dict(kept or {})
        self._uses: Counter[Expr] = Counter()

    def expect(self, *roots: Expr) -> None:
        """Say what will be asked for: parts that occur more than once get names."""
        for expr in walk(*roots):
            self._uses.update(expr.children)

    def value(self, expr: Expr) -> str:
        """Return the text of an expression's value; parts are written before it where they need a name."""
        found = self.known.get(expr)
        if found is not None:
            return found
        text = self._text(expr)
        is_leaf = isinstance(expr, (Axis, Const, DimValue))
        if is_leaf or (self._uses[expr] < 2 and expr.depth % MOST_DEPTH):
            return text
        name = self.writer.define(computed_type(expr.dtype), text)
        self.known[expr] = name
        return name

    def offset(self, buffer: Buffer, indices: Sequence[Expr]) -> str:
        """Return the offset of an element, counted in elements."""
        terms: list[str] = []
        for index, stride in zip(indices, buffer.strides, strict=True):
            if isinstance(index, Const) and index.value == 0:
                continue
            text = self.value(index)
            terms.append(text if stride == 1 else f"{text} * {self.parameters.dim(stride)}")
        return " + ".join(terms) or "0"

    def element(self, buffer: Buffer, indices: Sequence[Expr]) -> str:
        """Return the place of an element, to be read or written."""
        kept = self.kept.get(buffer)
        return kept(self, indices) if kept else f"{self.parameters.tensor(buffer)}[{self.offset(buffer, indices)}]"

    def store(self, buffer: Buffer, indices: Sequence[Expr], text: str) -> None:
        """Write an element."""
        converted = text if buffer in self.kept else to_stored(text, buffer.dtype)
        self.writer.line(f"{self.element(buffer, indices)} = {converted};")

    def _text(self, expr: Expr) -> str:
        match expr:
            case Axis():
                return self.axes[expr.name]
            case Const():
                return literal(expr.value, expr.dtype)
            case DimValue():
                return self.parameters.dim(expr.dim)
            case Load():
                text = self.element(expr.buffer, expr.indices)
                return (
                    f"({computed_type(expr.dtype)}){text}"
                    if expr.buffer in self.kept
                    else from_stored(text, expr.dtype)
                )
            case Unary():
                is_approximate = self.parameters.is_approximate
                return operations.unary(expr.op, self._operand(expr.x), expr.x.dtype, is_approximate)
            case Binary():
                return self._binary(expr)
            case Cast():
                return operations.convert(self.value(expr.x), expr.x.dtype, expr.dtype)
            case Select():
                return self._select(expr)
            case Iterate():
                return self._iterate(expr)
        raise CodegenError("an expression of an unknown kind", found=type(expr).__name__)

    def _operand(self, expr: Expr) -> str:
        """Return a value whose text may be repeated, or stand behind a sign."""
        text = self.value(expr)
        return text if text.isidentifier() else self.writer.define(computed_type(expr.dtype), text)

    def _binary(self, expr: Binary) -> str:
        a, b = self.value(expr.a), self.value(expr.b)
        if expr.op in _INDEX_INFIX and is_index(expr):  # cannot overflow
            return f"({a} {_INDEX_INFIX[expr.op]} {b})"
        return operations.binary(expr.op, a, b, expr.a.dtype, self.parameters.is_approximate)

    def _select(self, expr: Select) -> str:
        condition = self.value(expr.condition)
        if not any(isinstance(e, Load) for e in walk(expr.a, expr.b)):
            return f"({condition} ? {self.value(expr.a)} : {self.value(expr.b)})"
        name = self.writer.fresh()
        self.writer.line(f"{computed_type(expr.dtype)} {name};")
        for head, arm in ((f"if ({condition})", expr.a), ("else", expr.b)):
            outer = dict(self.known)
            with self.writer.block(head):  # what is loaded here is loaded nowhere else
                self.writer.line(f"{name} = {self.value(arm)};")
            self.known = outer
        self.known[expr] = name
        return name

    def _iterate(self, expr: Iterate) -> str:
        """Write the loop, which ends early where nothing changes."""
        name, step, dtype = self.writer.fresh(), self.writer.fresh(), computed_type(expr.dtype)
        self.writer.line(f"{dtype} {name} = {self.value(expr.init)};")
        outer = dict(self.known)
        with self.writer.block(f"for (int {step} = 0; {step} < {expr.count}; ++{step})"):
            self.known[expr.state] = name
            new = self.writer.define(dtype, self.value(expr.body))
            self.writer.line(f"if ({new} == {name}) break;")
            self.writer.line(f"{name} = {new};")
        self.known = {**outer, expr: name}
        return name


def from_stored(text: str, dtype: str) -> str:
    """Return an element as a value."""
    return f"value_of({text})" if is_narrow_float(dtype) else text


def to_stored(text: str, dtype: str) -> str:
    """Return a value as an element."""
    return f"Stored<{stored_type(dtype)}>::of({text})" if is_narrow_float(dtype) else text
