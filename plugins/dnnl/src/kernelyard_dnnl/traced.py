"""Traced numbers: a graph is lowered once with sizes that record what is computed of them, and what is decided.

Arithmetic becomes lines of a tape, comparisons become conditions that have to come out as they did; a number that is
used in any other way (as a text, say, or as the length of an array) has to be the same. So what was lowered is right
for all sizes that fulfil the conditions. Traced numbers have no hash: nothing that depends on one is found in a cache.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from kernelyard_dnnl.layout import MemoryDescriptor

Result = TypeVar("Result")
Number = int | float


class NotTraceableError(Exception):
    """A lowering cannot be traced: something depends on sizes in a way that no line can say."""


class Tape:
    """Lines of Python, of the numbers that a lowering computed of the values of dims.

    lines: in order; each names a number, or leaves with None where a condition does not hold. dims: whose values the
    lines begin with. constants: by the names that lines have for them.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.dims: list[object] = []
        self.constants: dict[str, object] = {}
        self._names: dict[str, str] = {}
        self._conditions: set[str] = set()
        self._constant_names: dict[int, str] = {}
        self._leaves: dict[object, TracedNumber] = {}
        self._descriptors: dict[int, tuple[MemoryDescriptor, str]] = {}

    def leaf(self, dim: object, value: int) -> TracedNumber:
        """Return the number that is the value of a dim."""
        if dim not in self._leaves:
            self._leaves[dim] = TracedNumber(self, f"d{len(self.dims)}", value)
            self.dims.append(dim)
        return self._leaves[dim]

    def name(self, text: str, prefix: str = "t") -> str:
        """Return the name of what an expression gives; equal ones are computed once."""
        if text not in self._names:
            name = self._names[text] = f"{prefix}{len(self._names)}"
            self.lines.append(f"{name} = {text}")
        return self._names[text]

    def require(self, condition: str) -> None:
        """Have the lines end where a condition does not hold."""
        if condition not in self._conditions:
            self._conditions.add(condition)
            self.lines.append(f"if not ({condition}): return None")

    def constant(self, value: object) -> str:
        """Return the name of a constant."""
        if value is None or type(value) in (bool, int):  # a member of an enumeration is no literal
            return repr(value)
        name = self._constant_names.get(id(value))
        if name is None:
            name = self._constant_names[id(value)] = f"k{len(self.constants)}"
            self.constants[name] = value
        return name

    def write(self, value: Any) -> str:
        """Return the expression of a number, or of tuples, dicts and layouts that have some."""
        return self._write_traced(value) or self.constant(value)

    def _write_traced(self, value: Any) -> str | None:
        """Return the expression of what has traced numbers; None where it has none."""
        if isinstance(value, TracedNumber):
            return value.name
        if isinstance(value, MemoryDescriptor):
            return self._write_descriptor(value)
        if isinstance(value, tuple):
            return self._write_tuple(value)
        return self._write_mapping(value) if isinstance(value, Mapping) else None

    def _write_tuple(self, value: tuple[Any, ...]) -> str | None:
        parts = [self._write_traced(part) for part in value]
        if not any(parts):
            return None
        texts = [text or self.constant(part) for text, part in zip(parts, value, strict=True)]
        fields = "".join(f"{text}, " for text in texts)
        return f"({fields})" if type(value) is tuple else f"{self.constant(type(value))}({fields})"

    def _write_mapping(self, value: Mapping[Any, Any]) -> str | None:
        texts = {key: self._write_traced(item) for key, item in value.items()}
        if not any(texts.values()):
            return None
        items = (f"{self.write(key)}: {text or self.constant(value[key])}" for key, text in texts.items())
        return f"{{{', '.join(items)}}}"

    def _write_descriptor(self, descriptor: MemoryDescriptor) -> str | None:
        known = self._descriptors.get(id(descriptor))
        if known is not None:
            return known[1]
        parts = descriptor.shape, descriptor.dtype, descriptor.strides
        if self._write_traced(parts) is None:
            return None
        if descriptor.blocked is not None:
            raise NotTraceableError("a blocked layout whose shape depends on sizes")
        name = self.name(f"{self.constant(MemoryDescriptor)}({', '.join(map(self.write, parts))})", "m")
        self._descriptors[id(descriptor)] = descriptor, name
        return name


def _literal(value: Number) -> str:
    if not math.isfinite(value):
        raise NotTraceableError(f"a size meets {value}")
    return repr(value)


def _operand(other: Any) -> tuple[str, Number] | None:
    """Return the text and the value of a number, traced or not; None for what is none."""
    if isinstance(other, TracedNumber):
        return other.name, other.value
    return (_literal(other), other) if isinstance(other, (int, float)) else None


def _operation(symbol: str, function: Callable[[Any, Any], Any], is_reversed: bool = False) -> Any:
    def method(self: TracedNumber, other: Any) -> Any:
        operand = _operand(other)
        if operand is None:
            return NotImplemented
        text, value = operand
        left, right = (
            ((text, value), (self.name, self.value)) if is_reversed else ((self.name, self.value), (text, value))
        )
        return TracedNumber(self.tape, self.tape.name(f"{left[0]} {symbol} {right[0]}"), function(left[1], right[1]))

    return method


def _comparison(symbol: str, function: Callable[[Any, Any], bool]) -> Any:
    def method(self: TracedNumber, other: Any) -> Any:
        operand = _operand(other)
        if operand is None:
            return NotImplemented
        text, value = operand
        found = function(self.value, value)
        if self.name != text:
            self.tape.require(f"{self.name} {symbol} {text}" if found else f"not {self.name} {symbol} {text}")
        return found

    return method


def _used(function: Callable[[Any], Any]) -> Any:
    def method(self: TracedNumber, *arguments: Any) -> Any:
        self.tape.require(f"{self.name} == {self.value!r}")
        return function(self.value, *arguments)

    return method


class TracedNumber:
    """A number that is computed of sizes: its value, and the name of the line that computes it."""

    __slots__ = ("name", "tape", "value")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, tape: Tape, name: str, value: Number) -> None:
        self.tape = tape
        self.name = name
        self.value = value

    __add__, __radd__ = _operation("+", operator.add), _operation("+", operator.add, True)
    __sub__, __rsub__ = _operation("-", operator.sub), _operation("-", operator.sub, True)
    __mul__, __rmul__ = _operation("*", operator.mul), _operation("*", operator.mul, True)
    __floordiv__, __rfloordiv__ = _operation("//", operator.floordiv), _operation("//", operator.floordiv, True)
    __truediv__, __rtruediv__ = _operation("/", operator.truediv), _operation("/", operator.truediv, True)
    __mod__, __rmod__ = _operation("%", operator.mod), _operation("%", operator.mod, True)
    __eq__, __ne__ = _comparison("==", operator.eq), _comparison("!=", operator.ne)
    __lt__, __le__ = _comparison("<", operator.lt), _comparison("<=", operator.le)
    __gt__, __ge__ = _comparison(">", operator.gt), _comparison(">=", operator.ge)
    __index__, __int__, __float__ = _used(operator.index), _used(int), _used(float)
    __repr__, __str__, __format__ = _used(repr), _used(str), _used(format)
    __round__, __ceil__, __floor__, __trunc__ = _used(round), _used(int), _used(int), _used(int)

    def __neg__(self) -> Any:
        return 0 - self

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __bool__(self) -> bool:
        return self != 0

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __reduce__(self) -> NoReturn:
        raise NotTraceableError("a traced number leaves the process")


class Deferred:
    """A call that is made again for other sizes, as its arguments are then."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments


def decide(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function decides about sizes: one condition, whatever it compares on its way."""
    tape = tape_of(arguments)
    if tape is None:
        return function(*arguments)
    found = function(*value_of(arguments))
    call = f"{tape.constant(function)}({', '.join(map(tape.write, arguments))})"
    tape.require(f"{call} == {tape.constant(found)}")
    return found


def defer(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function makes for sizes; where these are traced, a call that is made for each set of sizes."""
    deferred: Any = Deferred(function, arguments)
    return function(*arguments) if tape_of(arguments) is None else deferred


def tape_of(value: Any) -> Tape | None:
    """Return the tape of the traced numbers in something; None where there are none."""
    if isinstance(value, TracedNumber):
        return value.tape
    if isinstance(value, MemoryDescriptor):
        return tape_of((value.shape, value.strides))
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return next((tape for tape in map(tape_of, parts) if tape is not None), None)


def value_of(value: Any) -> Any:
    """Return the same with plain numbers, as they are at the sizes that are traced."""
    if isinstance(value, TracedNumber):
        return value.value
    if tape_of(value) is None:
        return value
    if isinstance(value, MemoryDescriptor):
        shape, strides = value_of((value.shape, value.strides))
        return MemoryDescriptor(shape, value.dtype, strides, value.blocked)
    if isinstance(value, Mapping):
        return {key: value_of(item) for key, item in value.items()}
    parts = map(value_of, value)
    return tuple(parts) if type(value) is tuple else value._make(parts)
