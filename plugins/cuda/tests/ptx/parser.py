"""From PTX text to functions: registers with their widths, instructions with their operands, labels, variables.

Source: PTX ISA, sections "Syntax", "State Spaces, Types, and Variables", "Instruction Operands".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from .errors import PtxError
from .scalars import TYPES, literal, nbytes_of

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HEADER = re.compile(r"\s*\.(version|target|address_size)\b[^\n]*")
_FUNCTION = re.compile(r"\s*(?:\.(?:visible|weak|extern)\s+)*\.(entry|func)\b([^{;]*)([{;])")
_NAME_AND_PARAMETERS = re.compile(r"(?:\([^)]*\)\s*)?([\w$%]+)\s*(?:\(([^)]*)\))?", re.DOTALL)
_LABEL = re.compile(r"([\w$%]+)\s*:(?!:)")
_REGISTERS = re.compile(r"([\w$%]+)(?:<(\d+)>)?")
_VARIABLE = re.compile(
    r"(?:\.(?:visible|weak|extern|common)\s+)*\.(?P<space>global|shared|const|local|param)\s*(?:\.align\s+(?P<align>\d+))?"
    r"\s*\.(?P<type>\w+)\s+(?P<name>[\w$%]+)\s*(?P<sizes>(?:\[\d*\])*)\s*(?:=\s*(?P<values>.*))?\Z",
    re.DOTALL,
)
_ADDRESS = re.compile(r"\[\s*([\w$%.]+)\s*(?:\+?\s*(-?\d+))?\s*\]\Z")
_NUMBER = re.compile(r"-?(0[fFdD][0-9a-fA-F]+|0[xX][0-9a-fA-F]+U?|\d+(\.\d+)?U?)\Z")


@dataclass(frozen=True)
class Register:
    """A register of a function; special registers (%tid.x) have type "special"."""

    name: str
    type: str


@dataclass(frozen=True)
class Literal:
    """A number, as it is written."""

    text: str


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, the name of a label or of a function."""

    name: str


@dataclass(frozen=True)
class Address:
    """[base + offset]."""

    base: Register | Literal | Symbol
    offset: int


@dataclass(frozen=True)
class Vector:
    """{a, b, ...}, and what is written a|b."""

    parts: tuple[Operand, ...]


@dataclass(frozen=True)
class Not:
    """!p."""

    of: Operand


Operand = Register | Literal | Symbol | Address | Vector | Not


@dataclass(frozen=True)
class Instruction:
    """guard: a predicate, under which it is executed; line: in the text, from 1."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Operand | None
    text: str
    line: int

    def has(self, *modifiers: str) -> bool:
        return any(modifier in self.modifiers for modifier in modifiers)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Its types, in the order in which they are written."""
        return tuple(modifier for modifier in self.modifiers if modifier in TYPES)

    @property
    def type(self) -> str:
        return self.types[-1]


@dataclass(frozen=True)
class Variable:
    """An array of a state space. values: its bytes, where they are given; nbytes 0: what the launch says."""

    name: str
    space: str
    nbytes: int
    align: int
    values: bytes


@dataclass
class Function:
    name: str
    parameters: list[Variable]
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass
class Module:
    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)


def parse(text: str) -> Module:
    """Return the functions and variables of PTX text. Raises: PtxError naming the line."""
    text = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)  # lines keep their numbers
    module, place = Module(), 0
    while text[place:].strip():
        if found := _HEADER.match(text, place):
            place = found.end()
        elif found := _FUNCTION.match(text, place):
            place = found.end()
            if found[3] == "{":
                function = _head(found[2])
                place = _Body(text, function).read(place)
                module.functions[function.name] = function
        else:
            end = text.index(";", place)
            module.variables.append(_variable(text[place:end].strip()))
            place = end + 1
    return module


def _head(text: str) -> Function:
    found = _NAME_AND_PARAMETERS.match(text.strip())
    if found is None:
        raise PtxError(f"this is no head of a function: {text.strip()}")
    parameters = [_variable(each.strip()) for each in (found[2] or "").split(",") if each.strip()]
    return Function(found[1], parameters)


def _variable(text: str) -> Variable:
    found = _VARIABLE.match(text)
    if found is None:
        raise PtxError(f"this declaration is unknown: {text}")
    count = 1
    for size in re.findall(r"\[(\d*)\]", found["sizes"]):
        count *= int(size or 0)
    itemsize = nbytes_of(found["type"])
    words = re.findall(r"[^\s{},]+", found["values"] or "")
    values = b"".join(literal(word, found["type"]).to_bytes(itemsize, "little") for word in words)
    return Variable(found["name"], found["space"], count * itemsize, int(found["align"] or itemsize), values)


class _Body:
    """Parse the body of a function. A name that is declared in inner braces is another one there."""

    def __init__(self, text: str, function: Function) -> None:
        self.text, self.function = text, function
        self.scopes: list[dict[str, Register]] = [{}]

    def read(self, place: int) -> int:
        """Read from behind the opening brace. Returns the place behind the closing one."""
        while self.scopes:
            place = self._skip_spaces(place)
            if self.text[place] == "{":
                self.scopes.append({})
                place += 1
            elif self.text[place] == "}":
                self.scopes.pop()
                place += 1
            elif found := _LABEL.match(self.text, place):
                self._label(found[1], place)
                place = found.end()
            else:
                end = self.text.index(";", place)
                self._statement(self.text[place:end], self.text.count("\n", 0, place) + 1)
                place = end + 1
        return place

    def _skip_spaces(self, place: int) -> int:
        while self.text[place].isspace() or self.text[place] == ";":
            place += 1
        return place

    def _label(self, name: str, place: int) -> None:
        if name in self.function.labels:
            raise PtxError(f"line {self.text.count(chr(10), 0, place) + 1}: the label {name} is there twice")
        self.function.labels[name] = len(self.function.instructions)

    def _statement(self, statement: str, line: int) -> None:
        words = " ".join(statement.split())
        if words.startswith(".reg"):
            self._declare(words)
        elif words.startswith((".shared", ".local", ".param", ".const")):
            self.function.variables.append(_variable(words))
        elif words and not words.startswith((".loc", ".pragma")):
            self.function.instructions.append(self._instruction(words, line))

    def _declare(self, words: str) -> None:
        _, kind, names = words.split(" ", 2)
        inner = f"#{len(self.function.registers)}" if len(self.scopes) > 1 else ""
        for name, count in _REGISTERS.findall(names):
            for each in [f"{name}{number}" for number in range(int(count))] if count else [name]:
                register = Register(each + inner, kind.lstrip("."))
                self.scopes[-1][each] = register
                self.function.registers[register.name] = register.type

    def _instruction(self, words: str, line: int) -> Instruction:
        guard, rest = None, words
        if rest.startswith("@"):
            name, rest = rest[1:].split(" ", 1)
            guard = self._operand(name)
        name, _, operands = rest.strip().partition(" ")
        opcode, *modifiers = name.split(".")
        parsed = tuple(self._operand(each) for each in _split(operands))
        return Instruction(opcode, tuple(modifiers), parsed, guard, words, line)

    def _operand(self, text: str) -> Operand:
        if text.startswith("!"):
            return Not(self._operand(text[1:].strip()))
        if text[0] in "{(":
            return Vector(tuple(self._operand(each) for each in _split(text[1:-1])))
        if "|" in text:
            return Vector(tuple(self._operand(each.strip()) for each in text.split("|")))
        if found := _ADDRESS.match(text):
            base = self._operand(found[1])
            assert isinstance(base, Register | Literal | Symbol)
            return Address(base, int(found[2] or 0))
        if _NUMBER.match(text):
            return Literal(text)
        for scope in reversed(self.scopes):
            if text in scope:
                return scope[text]
        return Register(text, "special") if text.startswith("%") else Symbol(text)


def _split(text: str) -> Iterator[str]:
    """Split at commas that are in no brackets."""
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "{[(") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    if text[start:].strip():
        yield text[start:].strip()
