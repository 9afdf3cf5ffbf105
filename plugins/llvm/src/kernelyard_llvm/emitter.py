"""Writes one LLVM function as text, in SSA form, with structured loops and branches.

Two things keep LLVM's own work small. Equal pure instructions are written once, and each is placed in the outermost
scope that has its operands, so that loop invariants stand outside their loops from the start. Scopes are nested lines
of text: a loop's lines are spliced into its parent when the loop is closed, after all that was hoisted out of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kernelyard_llvm.values import BITS, Value, float_literal, int_literal, literal_int, vector_type

LoopBody = Callable[[Value, list[Value]], Sequence[Value]]

# Lets LLVM fuse a multiplication and an addition; NaN, infinity and signed zero keep their IEEE meaning.
CONTRACT = "contract"


@dataclass
class Scope:
    """Lines of a function body, loop body or branch; `label` is the basic block that is being written."""

    depth: int
    label: str
    guarded: bool
    lines: list[str] = field(default_factory=list)
    known: dict[str, Value] = field(default_factory=dict)


class FunctionEmitter:
    """Builds one function. `declarations` collects the intrinsics it calls.

    has_fma, has_scale: the target multiplies and adds, or multiplies by powers of two, in one instruction; what has the
    latter looks up tables, too.
    """

    def __init__(
        self, parameters: Sequence[Value], declarations: set[str], has_fma: bool = True, has_scale: bool = False
    ) -> None:
        self.parameters = tuple(parameters)
        self.declarations = declarations
        self.has_fma = has_fma
        self.has_scale = has_scale
        self.scopes = [Scope(0, "entry", guarded=False)]
        self._counter = 0

    # --- scopes ---------------------------------------------------------------------------------------------------
    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    @property
    def guard_depth(self) -> int:
        """The innermost scope that is run only under a condition: loads must not leave it."""
        return next((scope.depth for scope in reversed(self.scopes) if scope.guarded), 0)

    def fresh(self, prefix: str = "v") -> str:
        self._counter += 1
        return f"{prefix}{self._counter}"

    def line(self, text: str) -> None:
        self.scope.lines.append(f"  {text}")

    def _start_block(self, label: str) -> None:
        self.scope.lines.append(f"{label}:")
        self.scope.label = label

    def _open(self, label: str, guarded: bool) -> Scope:
        scope = Scope(len(self.scopes), label, guarded)
        self.scopes.append(scope)
        return scope

    # --- instructions ---------------------------------------------------------------------------------------------
    def pure(
        self, text: str, type_: str, lanes: int, operands: Sequence[Value], floor: int = 0, key: str | None = None
    ) -> Value:
        """An instruction without effect, written once, as far out as its operands (and `floor`) allow."""
        depth = max(floor, *(operand.depth for operand in operands), 0)
        scope = self.scopes[depth]
        known = scope.known.get(key or text)
        if known is not None:
            return known
        ref = f"%{self.fresh()}"
        scope.lines.append(f"  {ref} = {text}")
        value = Value(ref, type_, lanes, depth)
        scope.known[key or text] = value
        return value

    def here(self, text: str, type_: str, lanes: int = 1) -> Value:
        """An instruction that stays where it is written."""
        ref = f"%{self.fresh()}"
        self.line(f"{ref} = {text}")
        return Value(ref, type_, lanes, self.depth)

    def broadcast(self, value: Value, lanes: int) -> Value:
        """A scalar in every lane; vectors pass through."""
        if value.lanes == lanes:
            return value
        if value.is_literal:
            return Value(f"splat ({value.type} {value.ref})", value.type, lanes, value.depth)
        text = vector_type(value.type, lanes)
        first = self.pure(f"insertelement {text} poison, {value.typed}, i64 0", value.type, lanes, [value])
        shuffle = f"shufflevector {first.typed}, {text} poison, <{lanes} x i32> zeroinitializer"
        return self.pure(shuffle, value.type, lanes, [first])

    def align_lanes(self, *values: Value) -> list[Value]:
        """Values with one number of lanes: scalars are broadcast."""
        lanes = max(value.lanes for value in values)
        return [self.broadcast(value, lanes) for value in values]

    def binary(self, op: str, a: Value, b: Value, flags: str = "", floor: int = 0) -> Value:
        """`op` of two values; floating-point operations may be contracted."""
        folded = _fold(op, a, b)
        if folded is not None:
            return folded
        a, b = self.align_lanes(a, b)
        words = " ".join(word for word in (op, flags or (CONTRACT if op in ("fadd", "fsub", "fmul") else "")) if word)
        return self.pure(f"{words} {a.typed}, {b.ref}", a.type, a.lanes, [a, b], floor)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """A comparison to i1: `predicate` of icmp, or of fcmp for floats."""
        a, b = self.align_lanes(a, b)
        op = "fcmp" if a.is_float else "icmp"
        return self.pure(f"{op} {predicate} {a.typed}, {b.ref}", "i1", a.lanes, [a, b])

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the condition holds, else `b`; both are computed."""
        if condition.ref in ("true", "false"):
            return a if condition.ref == "true" else b
        if condition.lanes == 1:
            a, b = self.align_lanes(a, b)
        else:
            condition, a, b = self.align_lanes(condition, a, b)
        return self.pure(
            f"select {condition.typed}, {a.typed}, {b.typed}", a.type, max(a.lanes, condition.lanes), [condition, a, b]
        )

    def convert(self, op: str, value: Value, type_: str) -> Value:
        """A conversion instruction: sext, zext, trunc, bitcast, sitofp, fpext, ..."""
        if value.type == type_:
            return value
        return self.pure(f"{op} {value.typed} to {vector_type(type_, value.lanes)}", type_, value.lanes, [value])

    def intrinsic(self, name: str, *args: Value, result: str | None = None, flags: str = "") -> Value:
        """A pure intrinsic, overloaded on its first argument (and on `result`, where that differs)."""
        args = tuple(self.align_lanes(*args))
        lanes = args[0].lanes
        suffixes = [result, args[0].type] if result else [args[0].type]
        full = f"llvm.{name}." + ".".join(_mangle(t, lanes) for t in suffixes)
        type_ = result or args[0].type
        self.declarations.add(f"declare {vector_type(type_, lanes)} @{full}({', '.join(arg.text for arg in args)})")
        call = f"call {flags + ' ' if flags else ''}{vector_type(type_, lanes)} @{full}"
        return self.pure(f"{call}({', '.join(arg.typed for arg in args)})", type_, lanes, args)

    def library_call(self, symbol: str, *args: Value) -> Value:
        """A C function of floating-point scalars, called lane by lane."""
        args = tuple(self.align_lanes(*args))
        type_, lanes = args[0].type, args[0].lanes
        self.declarations.add(f"declare {type_} @{symbol}({', '.join(arg.type for arg in args)}) #1")
        if lanes == 1:
            return self.pure(f"call {type_} @{symbol}({', '.join(arg.typed for arg in args)})", type_, 1, args)
        result = Value("poison", type_, lanes)
        for lane in range(lanes):
            scalars = [self.extract(arg, lane) for arg in args]
            one = self.library_call(symbol, *scalars)
            result = self.insert(result, one, lane)
        return result

    def extract(self, vector: Value, lane: int) -> Value:
        return self.pure(f"extractelement {vector.typed}, i64 {lane}", vector.type, 1, [vector])

    def insert(self, vector: Value, scalar: Value, lane: int) -> Value:
        text = f"insertelement {vector.typed}, {scalar.typed}, i64 {lane}"
        return self.pure(text, vector.type, vector.lanes, [vector, scalar])

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """A square of values, as vectors of its columns: each round interleaves the halves, log2(n) rounds turn it."""
        current, count = list(rows), len(rows)
        orders = [[n // 2 + (n % 2) * count + half * count // 2 for n in range(count)] for half in (0, 1)]
        for _ in range(count.bit_length() - 1):
            pairs = zip(current[: count // 2], current[count // 2 :], strict=True)
            current = [self.shuffle(a, b, order) for a, b in pairs for order in orders]
        return current

    def shuffle(self, a: Value, b: Value, order: Sequence[int]) -> Value:
        """Lanes chosen from two vectors."""
        lanes = ", ".join(f"i32 {n}" for n in order)
        text = f"shufflevector {a.typed}, {b.typed}, <{len(order)} x i32> <{lanes}>"
        return self.pure(text, a.type, len(order), [a, b])

    # --- short names for arithmetic -------------------------------------------------------------------------------
    def add(self, a: Value, b: Value) -> Value:
        return self.binary("fadd", a, b) if a.is_float else self.binary("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.binary("fsub", a, b) if a.is_float else self.binary("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.binary("fmul", a, b) if a.is_float else self.binary("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.binary("fdiv", a, b)

    def neg(self, a: Value) -> Value:
        return self.pure(f"fneg {a.typed}", a.type, a.lanes, [a])

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """`a * b + c`, rounded once where the target can."""
        if self.has_fma:
            return self.intrinsic("fma", a, b, c)
        return self.add(self.mul(a, b), c)

    def scale(self, x: Value, n: Value) -> Value | None:
        """`x * 2 ** n` for whole `n` in floating point, rounded once; None where no instruction does it."""
        bits = x.lanes * BITS[x.type]
        if not self.has_scale or bits not in (128, 256, 512):
            return None
        mask = int_literal(-1, f"i{max(x.lanes, 8)}")
        operands = [x, self.broadcast(n, x.lanes), Value("poison", x.type, x.lanes), mask]
        if bits == 512:
            operands.append(int_literal(4, "i32"))  # rounding as it is set
        name = f"llvm.x86.avx512.mask.scalef.{'ps' if x.type == 'float' else 'pd'}.{bits}"
        self.declarations.add(f"declare {x.text} @{name}({', '.join(each.text for each in operands)})")
        arguments = ", ".join(each.typed for each in operands)
        return self.pure(f"call {x.text} @{name}({arguments})", x.type, x.lanes, operands)

    def has_look_up(self, lanes: int) -> bool:
        """True where an instruction looks up so many floats at once in a table of as many."""
        return self.has_scale and lanes == 16

    def look_up(self, table: Sequence[Value], places: Value) -> Value:
        """The entries of a table of floats at places: the last bits of integers, one for each lane."""
        entries = Value(f"<{', '.join(entry.typed for entry in table)}>", table[0].type, len(table))
        name = "llvm.x86.avx512.permvar.sf.512"
        self.declarations.add(f"declare {entries.text} @{name}({entries.text}, {places.text})")
        return self.pure(f"call {entries.text} @{name}({entries.typed}, {places.typed})", entries.type, 16, [places])

    # --- structured control flow ----------------------------------------------------------------------------------
    def loop(
        self,
        begin: Value,
        end: Value,
        body: LoopBody,
        inits: Sequence[Value] = (),
        step: int = 1,
        runs: bool = False,
    ) -> list[Value]:
        """`for i in range(begin, end, step)`; `body` gets i and the carried values and returns the new ones.

        runs: the caller knows that the loop runs at least once. Returns the carried values after the loop.
        """
        head, before, after = self.fresh("loop"), self.fresh("before"), self.fresh("after")
        scope = self._open(head, guarded=False)
        index = Value(f"%{self.fresh('i')}", "i64", 1, scope.depth)
        carried = [Value(f"%{self.fresh('c')}", init.type, init.lanes, scope.depth) for init in inits]
        new = list(body(index, carried))
        latch = scope.label
        self.scopes.pop()
        following = self.fresh("n")
        again = self.fresh("again")

        self.line(f"br label %{before}")
        self._start_block(before)
        if runs:
            self.line(f"br label %{head}")
        else:
            enter = self.here(f"icmp slt i64 {begin.ref}, {end.ref}", "i1")
            self.line(f"br i1 {enter.ref}, label %{head}, label %{after}")
        self._start_block(head)
        self.line(f"{index.ref} = phi i64 [ {begin.ref}, %{before} ], [ %{following}, %{latch} ]")
        for phi, init, value in zip(carried, inits, new, strict=True):
            self.line(f"{phi.ref} = phi {phi.text} [ {init.ref}, %{before} ], [ {value.ref}, %{latch} ]")
        self.scope.lines += scope.lines
        self.line(f"%{following} = add nuw nsw i64 {index.ref}, {step}")
        self.line(f"%{again} = icmp slt i64 %{following}, {end.ref}")
        self.line(f"br i1 %{again}, label %{head}, label %{after}")
        self._start_block(after)
        if runs:
            return [Value(value.ref, value.type, value.lanes, min(value.depth, self.depth)) for value in new]
        return [
            self.here(f"phi {value.text} [ {init.ref}, %{before} ], [ {value.ref}, %{latch} ]", value.type, value.lanes)
            for init, value in zip(inits, new, strict=True)
        ]

    def branch(
        self, condition: Value, then: Callable[[], Sequence[Value]], otherwise: Callable[[], Sequence[Value]]
    ) -> list[Value]:
        """If and else; each returns as many values, of the same types; returns the chosen ones."""
        labels = [self.fresh("then"), self.fresh("else")]
        done = self.fresh("done")
        arms: list[tuple[Scope, list[Value]]] = []
        for label, body in zip(labels, (then, otherwise), strict=True):
            scope = self._open(label, guarded=True)
            results = list(body())
            self.scopes.pop()
            arms.append((scope, results))
        self.line(f"br i1 {condition.ref}, label %{labels[0]}, label %{labels[1]}")
        for label, (scope, _) in zip(labels, arms, strict=True):
            self._start_block(label)
            self.scope.lines += scope.lines
            self.line(f"br label %{done}")
        self._start_block(done)
        ends = [scope.label for scope, _ in arms]
        return [
            self.here(f"phi {a.text} [ {a.ref}, %{ends[0]} ], [ {b.ref}, %{ends[1]} ]", a.type, a.lanes)
            for a, b in zip(arms[0][1], arms[1][1], strict=True)
        ]

    def finish(self, name: str, result: str = "void", returned: str = "ret void", linkage: str = "") -> str:
        """The text of the function."""
        assert self.depth == 0, "a scope is still open"
        head = ", ".join(f"{p.text} {p.ref}" for p in self.parameters)
        words = " ".join(word for word in ("define", linkage, result) if word)
        body = "\n".join(self.scope.lines)
        return f"{words} @{name}({head}) #0 {{\nentry:\n{body}\n  {returned}\n}}\n"


def _mangle(type_: str, lanes: int) -> str:
    short = {"half": "f16", "float": "f32", "double": "f64"}.get(type_, type_)
    return short if lanes == 1 else f"v{lanes}{short}"


# op: its meaning, and the literal that changes nothing on the right, and unless it is subtracted from on the left.
_FOLDED: dict[str, tuple[Callable[[int, int], int], int]] = {
    "add": (operator.add, 0),
    "sub": (operator.sub, 0),
    "mul": (operator.mul, 1),
}


def _fold(op: str, a: Value, b: Value) -> Value | None:
    """Integer arithmetic on literals, and with 0 and 1: index expressions are full of it."""
    if op not in _FOLDED or a.lanes != 1 or b.lanes != 1:
        return None
    meaning, neutral = _FOLDED[op]
    x, y = literal_int(a), literal_int(b)
    if x is not None and y is not None:
        return int_literal(meaning(x, y), a.type)
    if y == neutral:
        return a
    if x == neutral and op != "sub":
        return b
    return int_literal(0, a.type) if op == "mul" and 0 in (x, y) else None


__all__ = ["CONTRACT", "FunctionEmitter", "Scope", "Value", "float_literal", "int_literal"]
