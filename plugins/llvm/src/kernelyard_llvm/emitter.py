"""Writes one LLVM function as text, in SSA form, with structured loops and branches.

Two things keep LLVM's own work small. Equal pure instructions are written once, and each is placed in the outermost
scope that has its operands, so that loop invariants stand outside their loops from the start. Scopes are nested lines
of text: a loop's lines are spliced into its parent when the loop is closed, after all that was hoisted out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter

from kernelyard_llvm.values import (
    BITS,
    Operand,
    Value,
    fold_integers,
    int_literal,
    iota,
    literal_int,
    mangle_type,
    state_alignment,
    values_of,
    vector_type,
)

# Lets LLVM fuse a multiplication and an addition; NaN, infinity and signed zero keep their IEEE meaning.
CONTRACT = "contract"
_depth_of = attrgetter("depth")


class Scope:
    """Lines of a function body, loop body or branch; `label` is the basic block that is being written."""

    def __init__(self, depth: int, label: str, guarded: bool) -> None:
        self.depth = depth
        self.label = label
        self.guarded = guarded
        self.lines: list[str] = []
        self.known: dict[str, Value] = {}


class FunctionEmitter:
    """Builds one function. `declarations` collects what it calls, by name.

    has_fma, has_scale: the target multiplies and adds, or multiplies by powers of two, in one instruction; what has the
    latter looks up tables, too.
    """

    def __init__(
        self,
        parameters: Sequence[Value],
        declarations: dict[str, str] | None = None,
        has_fma: bool = True,
        has_scale: bool = False,
    ) -> None:
        self.parameters = tuple(parameters)
        self.declarations = {} if declarations is None else declarations
        self.has_fma, self.has_scale = has_fma, has_scale
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

    def _splice(self, label: str, scope: Scope, following: str) -> None:
        self._start_block(label)
        self.scope.lines += scope.lines
        self.line(f"br label %{following}")

    # --- instructions ---------------------------------------------------------------------------------------------
    def pure(
        self, text: str, type_: str, lanes: int, operands: Sequence[Value], floor: int = 0, key: str | None = None
    ) -> Value:
        """Return an instruction without effect, written once, as far out as its operands (and `floor`) allow."""
        depth = max(0, floor, *map(_depth_of, operands))
        scope, key = self.scopes[depth], key or text
        value = scope.known.get(key)
        if value is None:
            value = scope.known[key] = Value(f"%{self.fresh()}", type_, lanes, depth)
            scope.lines.append(f"  {value.ref} = {text}")
        return value

    def here(self, text: str, type_: str, lanes: int = 1) -> Value:
        """Return an instruction that stays where it is written."""
        ref = f"%{self.fresh()}"
        self.line(f"{ref} = {text}")
        return Value(ref, type_, lanes, self.depth)

    def broadcast(self, value: Value, lanes: int) -> Value:
        """Return a scalar in every lane; vectors pass through."""
        if value.lanes == lanes:
            return value
        if value.is_literal:
            return Value(f"splat ({value.type} {value.ref})", value.type, lanes, value.depth)
        text = vector_type(value.type, lanes)
        first = self.pure(f"insertelement {text} poison, {value.typed}, i64 0", value.type, lanes, [value])
        shuffle = f"shufflevector {first.typed}, {text} poison, <{lanes} x i32> zeroinitializer"
        return self.pure(shuffle, value.type, lanes, [first])

    def align_lanes(self, *operands: Operand) -> list[Value]:
        """Broadcast scalars, so that all values have the same number of lanes."""
        values = values_of(*operands)
        lanes = max([value.lanes for value in values])
        return [value if value.lanes == lanes else self.broadcast(value, lanes) for value in values]

    def binary(self, op: str, a: Operand, b: Operand, flags: str = "", floor: int = 0) -> Value:
        """Emit `op` of two values: add, udiv, shl, ...; floating-point operations may be contracted."""
        a, b = values_of(a, b)
        if a.is_float:
            op, flags = f"f{op}", flags or ("" if op == "div" else CONTRACT)
        known = fold_integers(op, a, b)
        if known is not None:
            return known
        if a.lanes != b.lanes:
            a, b = self.align_lanes(a, b)
        words = f"{op} {flags}" if flags else op
        return self.pure(f"{words} {a.typed}, {b.ref}", a.type, a.lanes, [a, b], floor)

    def compare(self, predicate: str, a: Operand, b: Operand) -> Value:
        """Return a comparison to i1: `predicate` of icmp, or of fcmp for floats."""
        a, b = self.align_lanes(a, b)
        op = "fcmp" if a.is_float else "icmp"
        return self.pure(f"{op} {predicate} {a.typed}, {b.ref}", "i1", a.lanes, [a, b])

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """Select `a` where the condition holds, else `b`; both are evaluated."""
        a, b = values_of(a, b)
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
        """Return a conversion instruction: sext, zext, trunc, bitcast, sitofp, fpext, ..."""
        if value.type == type_:
            return value
        return self.pure(f"{op} {value.typed} to {vector_type(type_, value.lanes)}", type_, value.lanes, [value])

    def call(self, name: str, result: str, *args: Value, flags: str = "", attributes: str = "") -> str:
        """Declare a function, and return the text of its call."""
        if name not in self.declarations:
            types = ", ".join(arg.text for arg in args)
            self.declarations[name] = f"declare {result} @{name}({types}){attributes}"
        words = f"{flags} {result}" if flags else result
        return f"call {words} @{name}({', '.join([arg.typed for arg in args])})"

    def intrinsic(self, name: str, *operands: Operand, result: str | None = None, flags: str = "") -> Value:
        """Return a pure intrinsic, overloaded on its first argument (and on `result`, where that differs)."""
        args = self.align_lanes(*operands)
        lanes = args[0].lanes
        type_ = result or args[0].type
        full = f"llvm.{name}.{f'{mangle_type(result, lanes)}.' if result else ''}{mangle_type(args[0].type, lanes)}"
        return self.pure(self.call(full, vector_type(type_, lanes), *args, flags=flags), type_, lanes, args)

    def across_lanes(self, op: str, vector: Value, *start: Value, flags: str = "") -> Value:
        """Return all lanes combined into a scalar, beginning with `start` where that matters."""
        name = f"llvm.vector.reduce.{op}.{mangle_type(vector.type, vector.lanes)}"
        return self.pure(self.call(name, vector.type, *start, vector, flags=flags), vector.type, 1, [vector])

    def library_call(self, symbol: str, *operands: Operand) -> Value:
        """Return a C function of floating-point scalars, called lane by lane."""
        args = self.align_lanes(*operands)
        type_, lanes = args[0].type, args[0].lanes
        if lanes == 1:
            return self.pure(self.call(symbol, type_, *args, attributes=" #1"), type_, 1, args)
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
        """Transpose a matrix of 2^n rows, by n rounds that interleave halves; columns follow each other in new rows."""
        current, count, lanes = list(rows), len(rows), rows[0].lanes
        orders = [[n // 2 + (n % 2) * lanes + half * lanes // 2 for n in range(lanes)] for half in (0, 1)]
        for _ in range(count.bit_length() - 1):
            pairs = zip(current[: count // 2], current[count // 2 :], strict=True)
            current = [self.shuffle(a, b, order) for a, b in pairs for order in orders]
        return current

    def shuffle(self, a: Value, b: Value, order: Sequence[int]) -> Value:
        """Shuffle the lanes of two vectors."""
        lanes = ", ".join(f"i32 {n}" for n in order)
        text = f"shufflevector {a.typed}, {b.typed}, <{len(order)} x i32> <{lanes}>"
        return self.pure(text, a.type, len(order), [a, b])

    # --- short names for arithmetic -------------------------------------------------------------------------------
    def add(self, a: Operand, b: Operand) -> Value:
        return self.binary("add", a, b)

    def sub(self, a: Operand, b: Operand) -> Value:
        return self.binary("sub", a, b)

    def mul(self, a: Operand, b: Operand) -> Value:
        return self.binary("mul", a, b)

    def div(self, a: Operand, b: Operand) -> Value:
        return self.binary("div", a, b)

    def neg(self, a: Value) -> Value:
        return self.pure(f"fneg {a.typed}", a.type, a.lanes, [a])

    def fma(self, a: Value, b: Operand, c: Operand) -> Value:
        """Emit `a * b + c`, fused (rounded once) where the target supports it."""
        if self.has_fma:
            return self.intrinsic("fma", a, b, c)
        return self.add(self.mul(a, b), c)

    def scale(self, x: Value, n: Value) -> Value | None:
        """Emit `x * 2 ** n` for whole `n` in floating point, rounded once; None where no instruction does it."""
        bits = x.lanes * BITS[x.type]
        if not self.has_scale or bits not in (128, 256, 512):
            return None
        mask = int_literal(-1, f"i{max(x.lanes, 8)}")
        operands = [x, self.broadcast(n, x.lanes), Value("poison", x.type, x.lanes), mask]
        if bits == 512:
            operands.append(int_literal(4, "i32"))  # rounding as it is set
        name = f"llvm.x86.avx512.mask.scalef.{'ps' if x.type == 'float' else 'pd'}.{bits}"
        return self.pure(self.call(name, x.text, *operands), x.type, x.lanes, operands)

    def has_look_up(self, lanes: int) -> bool:
        """Return True where an instruction looks up so many floats at once in a table of as many."""
        return self.has_scale and lanes == 16

    def look_up(self, table: Sequence[Value], places: Value) -> Value:
        """Return the entries of a table of floats at places: the last bits of integers, one for each lane."""
        entries = Value(f"<{', '.join(entry.typed for entry in table)}>", table[0].type, len(table))
        text = self.call("llvm.x86.avx512.permvar.sf.512", entries.text, entries, places)
        return self.pure(text, entries.type, 16, [places])

    # --- memory ---------------------------------------------------------------------------------------------------
    def element(self, start: Value, offset: Operand, type_: str = "float") -> Value:
        """Return the address so many elements of a type behind another."""
        (offset,) = values_of(offset)
        if offset.ref == "0":
            return start
        return self.pure(
            f"getelementptr {type_}, ptr {start.ref}, {offset.typed}", "ptr", offset.lanes, [start, offset]
        )

    def load_text(self, place: Value, type_: str, lanes: int, mask: Value | None = None) -> str:
        """Return a load of elements from an address on; lanes that the mask excludes are not read, and are 0."""
        text = vector_type(type_, lanes)
        if mask is None or lanes == 1:
            return f"load {text}, ptr {place.ref}, align {BITS[type_] // 8}"
        name, zeros = f"llvm.masked.load.{mangle_type(type_, lanes)}.p0", Value("zeroinitializer", type_, lanes)
        return self.call(name, text, state_alignment(place, type_), mask, zeros)

    def load(self, place: Value, lanes: int = 1, mask: Value | None = None, type_: str = "float") -> Value:
        """Return a load that stays where it is written."""
        return self.here(self.load_text(place, type_, lanes, mask), type_, lanes)

    def store(self, value: Value, place: Value, mask: Value | None = None) -> None:
        """Write an element, or a vector of neighbours; lanes that the mask excludes are not written."""
        if mask is None or value.lanes == 1:
            self.line(f"store {value.typed}, ptr {place.ref}, align {BITS[value.type] // 8}")
        else:
            name = f"llvm.masked.store.{mangle_type(value.type, value.lanes)}.p0"
            self.line(self.call(name, "void", value, state_alignment(place, value.type), mask))

    def prefetch(self, place: Value, locality: int = 3) -> None:
        """Ask for a cache line, which need not exist: 3 for the first-level cache, 2 for the second."""
        self.line(self.call("llvm.prefetch.p0", "void", place, *(int_literal(n, "i32") for n in (0, locality, 1))))

    def lanes_below(self, count: int, used: Value) -> Value:
        """Return a mask of the first `used` lanes."""
        known = literal_int(used)
        if known is not None:
            return Value(f"<{', '.join(f'i1 {str(n < known).lower()}' for n in range(count))}>", "i1", count)
        return self.compare("slt", iota(count), used)

    # --- structured control flow ----------------------------------------------------------------------------------
    @contextmanager
    def loop(
        self,
        begin: Operand,
        end: Operand,
        inits: Sequence[Value] = (),
        step: int = 1,
        runs: bool = False,
        more: Callable[[list[Value]], Value] | None = None,
    ) -> Iterator[tuple[Value, list[Value]]]:
        """`for i in range(begin, end, step)`: gives i and a list of the carried values, in which the body puts the new
        ones; after the loop it has the last ones. runs: the caller knows that the loop runs at least once. more: of the
        new values, whether to go on."""
        begin, end = values_of(begin, end)
        head, before, after = self.fresh("loop"), self.fresh("before"), self.fresh("after")
        scope = self._open(head, guarded=False)
        index = Value(f"%{self.fresh('i')}", "i64", 1, scope.depth)
        carried = [Value(f"%{self.fresh('c')}", init.type, init.lanes, scope.depth) for init in inits]
        new = list(carried)
        yield index, new
        goes_on = None if more is None else more(new)
        latch = scope.label
        self.scopes.pop()
        following = self.fresh("n")
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
        within = self.here(f"icmp slt i64 %{following}, {end.ref}", "i1")
        again = within if goes_on is None else self.here(f"and i1 {within.ref}, {goes_on.ref}", "i1")
        self.line(f"br i1 {again.ref}, label %{head}, label %{after}")
        self._start_block(after)
        for n, (init, value) in enumerate(zip(inits, new, strict=True)):
            phi = f"phi {value.text} [ {init.ref}, %{before} ], [ {value.ref}, %{latch} ]"
            depth = min(value.depth, self.depth)
            new[n] = value._replace(depth=depth) if runs else self.here(phi, value.type, value.lanes)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Emit a conditional block: its body runs only if the condition holds."""
        label, done = self.fresh("then"), self.fresh("done")
        scope = self._open(label, guarded=True)
        yield
        self.scopes.pop()
        self.line(f"br i1 {condition.ref}, label %{label}, label %{done}")
        self._splice(label, scope, done)
        self._start_block(done)

    def branch(
        self, condition: Value, then: Callable[[], Sequence[Value]], otherwise: Callable[[], Sequence[Value]]
    ) -> list[Value]:
        """Emit if and else, which return values of the same types; return the chosen ones (phi nodes)."""
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
            self._splice(label, scope, done)
        self._start_block(done)
        ends = [scope.label for scope, _ in arms]
        return [
            self.here(f"phi {a.text} [ {a.ref}, %{ends[0]} ], [ {b.ref}, %{ends[1]} ]", a.type, a.lanes)
            for a, b in zip(arms[0][1], arms[1][1], strict=True)
        ]

    def finish(self, name: str, is_internal: bool = False) -> str:
        """Return the text of the function, which returns nothing; is_internal: only this module calls it."""
        assert self.depth == 0, "a scope is still open"
        head = ", ".join(parameter.typed for parameter in self.parameters)
        body = "\n".join(("entry:", *self.scope.lines, "  ret void"))
        return f"define {'internal ' if is_internal else ''}void @{name}({head}) #0 {{\n{body}\n}}\n"
