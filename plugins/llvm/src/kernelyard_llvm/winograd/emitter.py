"""Writes functions of LLVM assembly: numbered values, loops, vectors of floats.

Integers are i64, addresses `ptr`; a value is named by its text, so that constants are values too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kernelyard_llvm.values import float_literal, vector_type


class Emitter:
    """One function in the making; `lanes` floats are a vector.

    Example:
        >>> f = Emitter("add_one", ["ptr %place"], lanes=8)
        >>> f.store(f.add(f.load("%place"), f.splat(1)), "%place")
        >>> print(f.text())
        define void @add_one(ptr %place) #0 {
          %v1 = load <8 x float>, ptr %place, align 4
          %v2 = fadd <8 x float> %v1, splat (float 0x3FF0000000000000)
          store <8 x float> %v2, ptr %place, align 4
          ret void
        }
    """

    def __init__(self, name: str, parameters: Sequence[str], lanes: int, linkage: str = "") -> None:
        self.name = name
        self.lanes = lanes
        self.vector = vector_type("float", lanes)
        self.mask = vector_type("i1", lanes)
        self._head = f"define {linkage}void @{name}({', '.join(parameters)}) #0 {{"
        self._lines: list[str] = []
        self._count = 0

    def text(self) -> str:
        """The function."""
        return "\n".join([self._head, *self._lines, "  ret void", "}"])

    def module(self) -> str:
        """The function, and the declarations that it needs."""
        return module([self.text()], self.lanes)

    # --- anything -----------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        """An instruction without a result."""
        self._lines.append(f"  {text}")

    def label(self, name: str) -> None:
        """A new block, to which what comes before must have branched."""
        self._lines.append(f"{name}:")

    def fresh(self, stem: str = "v") -> str:
        """A name that the function does not have yet, without its %."""
        self._count += 1
        return f"{stem}{self._count}"

    def value(self, text: str) -> str:
        """The result of an instruction."""
        name = f"%{self.fresh()}"
        self.line(f"{name} = {text}")
        return name

    def call(self, function: str, *arguments: str) -> None:
        """Calls a function without a result; arguments with their types."""
        self.line(f"call void {function}({', '.join(arguments)})")

    # --- control ------------------------------------------------------------------------------------------------
    @contextmanager
    def loop(self, first: str, last: str, step: str = "1") -> Iterator[str]:
        """A loop whose number runs from first to last, which is left out; it may run no time at all."""
        name = self.fresh("loop")
        before, head, body, latch, end = (f"{name}.{part}" for part in ("before", "head", "body", "latch", "end"))
        number, following = f"%{name}", f"%{name}.next"
        self.line(f"br label %{before}")
        self.label(before)
        self.line(f"br label %{head}")
        self.label(head)
        self.line(f"{number} = phi i64 [{first}, %{before}], [{following}, %{latch}]")
        self.line(f"%{name}.more = icmp slt i64 {number}, {last}")
        self.line(f"br i1 %{name}.more, label %{body}, label %{end}")
        self.label(body)
        yield number
        self.line(f"br label %{latch}")
        self.label(latch)
        self.line(f"{following} = add i64 {number}, {step}")
        self.line(f"br label %{head}")
        self.label(end)

    @contextmanager
    def sums(self, count: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
        """A loop from 0 to count that sums vectors: its number, and the sums so far by name, to be replaced by the new
        ones; afterwards they are the totals. The body is one block."""
        totals = {name: f"%sum{name}" for name in names}
        sums = dict(totals)
        before, head, body, end = (self.fresh("sums") for _ in range(4))
        self.line(f"br label %{before}")
        self.label(before)
        self.line(f"br label %{head}")
        lines, self._lines = self._lines, []
        yield f"%{head}.number", sums
        lines, self._lines = self._lines, lines
        self.label(head)
        self.line(f"%{head}.number = phi i64 [0, %{before}], [%{head}.next, %{body}]")
        for name, total in totals.items():
            self.line(f"{total} = phi {self.vector} [zeroinitializer, %{before}], [{sums[name]}, %{body}]")
        self.line(f"%{head}.more = icmp slt i64 %{head}.number, {count}")
        self.line(f"br i1 %{head}.more, label %{body}, label %{end}")
        self.label(body)
        self._lines += lines
        self.line(f"%{head}.next = add i64 %{head}.number, 1")
        self.line(f"br label %{head}")
        self.label(end)
        sums.update(totals)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is done only where an i1 holds."""
        name = self.fresh("when")
        self.line(f"br i1 {condition}, label %{name}.then, label %{name}.end")
        self.label(f"{name}.then")
        yield
        self.line(f"br label %{name}.end")
        self.label(f"{name}.end")

    # --- integers and addresses -----------------------------------------------------------------------------------
    def integer(self, operation: str, left: str, right: str) -> str:
        """`add`, `sub`, `mul`, `udiv`, `urem` of two integers."""
        return self.value(f"{operation} i64 {left}, {right}")

    def compare(self, how: str, left: str, right: str) -> str:
        """An i1: `slt`, `sge`, `eq`, ... of two integers."""
        return self.value(f"icmp {how} i64 {left}, {right}")

    def either(self, condition: str, left: str, right: str, type_: str = "i64") -> str:
        """left where the condition holds, else right."""
        return self.value(f"select i1 {condition}, {type_} {left}, {type_} {right}")

    def least(self, left: str, right: str) -> str:
        """The smaller of two integers."""
        return self.either(self.compare("slt", left, right), left, right)

    def all_of(self, first: str, *others: str) -> str:
        """Whether all of some i1 hold."""
        for other in others:
            first = self.value(f"and i1 {first}, {other}")
        return first

    def negated(self, condition: str) -> str:
        """Whether an i1 does not hold."""
        return self.value(f"xor i1 {condition}, true")

    def at(self, place: str, *elements: str) -> str:
        """The address so many floats (their sum) behind a place."""
        for count in elements:
            if count != "0":
                place = self.value(f"getelementptr float, ptr {place}, i64 {count}")
        return place

    # --- vectors ------------------------------------------------------------------------------------------------
    def splat(self, number: float) -> str:
        """A constant in all lanes."""
        return f"splat ({float_literal(number).typed})"

    def load(self, place: str) -> str:
        return self.value(f"load {self.vector}, ptr {place}, align 4")

    def load_lanes(self, place: str, mask: str) -> str:
        """A vector of which lanes outside of the mask are 0 and are not read."""
        return self.value(
            f"call {self.vector} @llvm.masked.load.v{self.lanes}f32.p0"
            f"(ptr align 4 {place}, {self.mask} {mask}, {self.vector} zeroinitializer)"
        )

    def store(self, value: str, place: str) -> None:
        self.line(f"store {self.vector} {value}, ptr {place}, align 4")

    def store_lanes(self, value: str, place: str, mask: str) -> None:
        """Writes the lanes of the mask alone."""
        self.call(
            f"@llvm.masked.store.v{self.lanes}f32.p0",
            f"{self.vector} {value}",
            f"ptr align 4 {place}",
            f"{self.mask} {mask}",
        )

    def prefetch(self, place: str) -> None:
        """Brings a line of memory to the second-level cache."""
        self.call("@llvm.prefetch.p0", f"ptr {place}", "i32 0", "i32 2", "i32 1")

    def broadcast(self, scalar: str) -> str:
        """A float in all lanes."""
        one = self.value(f"insertelement {self.vector} poison, float {scalar}, i64 0")
        return self.value(
            f"shufflevector {self.vector} {one}, {self.vector} poison, <{self.lanes} x i32> zeroinitializer"
        )

    def lanes_before(self, first: str, end: str) -> str:
        """The mask of the lanes that are left when a vector begins at `first`: those before `end`."""
        return self.value(f"call {self.mask} @llvm.get.active.lane.mask.v{self.lanes}i1.i64(i64 {first}, i64 {end})")

    def load_along(self, place: str, stride: str, size: int) -> list[list[str]]:
        """size x size vectors, a stride from each to the next."""
        grid: list[list[str]] = []
        for _ in range(size):
            line = []
            for _ in range(size):
                line.append(self.load(place))
                place = self.at(place, stride)
            grid.append(line)
        return grid

    def store_along(self, grid: Sequence[Sequence[str]], place: str, stride: str) -> None:
        """Writes vectors row by row, a stride from each to the next."""
        for line in grid:
            for vector in line:
                self.store(vector, place)
                place = self.at(place, stride)

    def add(self, left: str, right: str) -> str:
        return self.value(f"fadd {self.vector} {left}, {right}")

    def subtract(self, left: str, right: str) -> str:
        return self.value(f"fsub {self.vector} {left}, {right}")

    def multiply(self, left: str, right: str) -> str:
        return self.value(f"fmul {self.vector} {left}, {right}")

    def fma(self, left: str, right: str, addend: str) -> str:
        """left * right + addend, rounded once."""
        v = self.vector
        return self.value(f"call {v} @llvm.fma.v{self.lanes}f32({v} {left}, {v} {right}, {v} {addend})")


def module(functions: Sequence[str], lanes: int) -> str:
    """Functions of emitters together with what they may call."""
    vector, mask, suffix = vector_type("float", lanes), vector_type("i1", lanes), f"v{lanes}f32"
    names = {"fma": 3, "fabs": 1}
    return "\n".join(
        (
            *functions,
            f"declare {vector} @llvm.masked.load.{suffix}.p0(ptr, {mask}, {vector})",
            f"declare void @llvm.masked.store.{suffix}.p0({vector}, ptr, {mask})",
            f"declare {mask} @llvm.get.active.lane.mask.v{lanes}i1.i64(i64, i64)",
            *(f"declare {vector} @llvm.{name}.{suffix}({', '.join([vector] * n)})" for name, n in names.items()),
            "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
            'attributes #0 = { nounwind "prefer-vector-width"="512" }',
        )
    )
