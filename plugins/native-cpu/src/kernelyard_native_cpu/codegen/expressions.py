"""Scalar expressions of loop-level code as LLVM values, for one point or for the lanes of a vector of points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from kernelyard.errors import CodegenError
from kernelyard.plugins.codegen_api import (
    Affine,
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
    affine_of,
    axes_of,
    walk,
)
from kernelyard_llvm.values import Value, float_literal, iota
from kernelyard_native_cpu.codegen import arithmetic
from kernelyard_native_cpu.codegen.clipped_cast import cast_clipped, clip_of
from kernelyard_native_cpu.codegen.four_bits import four_bits, table_of
from kernelyard_native_cpu.codegen.memory import Memory
from kernelyard_native_cpu.codegen.types import cast, compute_type, decode, encode
from kernelyard_native_cpu.schedule.loops import MOST_STRIDE

_CHAINS = 8  # of an `Iterate` that run side by side


@dataclass(frozen=True)
class Lanes:
    """Consecutive values of one axis, one per lane; the axis' value in `axes` is that of the first lane.

    used: how many lanes stand for a value, where not all may; at least one does. It may be more than there are.
    """

    axis: str
    count: int
    used: Value | None = None


class Expressions:
    """Evaluates expressions where axes have the given values.

    axes: the value of every axis. lanes: the axis that runs along vectors, None for scalars.
    known: values of expressions that are at hand already.
    """

    def __init__(
        self,
        memory: Memory,
        axes: Mapping[str, Value],
        lanes: Lanes | None = None,
        known: Mapping[Expr, Value] | None = None,
    ) -> None:
        self.memory = memory
        self.e = memory.emitter
        self.axes = axes
        self.lanes = lanes if lanes and lanes.count > 1 else None
        self.known: dict[Expr, Value] = dict(known or {})
        self.mask: Value | None = None  # of the conditions around what is evaluated

    # --- values ---------------------------------------------------------------------------------------------------
    def value(self, expr: Expr) -> Value:
        """Return the value: a scalar where it is the same in every lane, else a vector."""
        found = self.known.get(expr)
        if found is None:
            found = self.known[expr] = self._evaluate(self.memory.packed.get(expr, expr))
        return found

    def _evaluate(self, expr: Expr) -> Value:
        looked_up = self._look_up(expr)
        if looked_up is not None:
            return looked_up
        match expr:
            case Const():
                return arithmetic.constant(expr.value, expr.dtype)
            case Axis() | DimValue():
                return self.affine(affine_of(expr))
            case Load():
                return self._load(expr)
            case Select():
                return self._select(expr)
            case Iterate():
                return self._iterate(expr)
            case Cast():
                return self._cast(expr)
            case Unary():
                return arithmetic.unary(self.e, expr.op, self.value(expr.x), expr.x.dtype)
            case Binary():
                return self._binary(expr)
        raise CodegenError("an expression of an unknown kind", found=type(expr).__name__)

    def _cast(self, expr: Cast) -> Value:
        clip = clip_of(expr)
        if clip is not None:
            return cast_clipped(self.e, self.value(clip.x), clip.low, clip.high, expr.dtype)
        return cast(self.e, self.value(expr.x), expr.x.dtype, expr.dtype, self.memory.has_half)

    def _look_up(self, expr: Expr) -> Value | None:
        """Emit a table lookup for an expression of four bits, if one instruction can look up sixteen entries."""
        if self.lanes is None or expr.dtype != "float32" or not self.e.has_look_up(self.lanes.count):
            return None
        bits = four_bits(expr)
        places = self.value(bits.a) if bits is not None else None
        if bits is None or places is None or places.lanes != self.lanes.count:
            return None
        return self.e.look_up([float_literal(entry) for entry in table_of(expr, bits)], places)

    def _binary(self, expr: Binary) -> Value:
        if expr.dtype == "int64" and expr.op in ("add", "sub", "mul"):
            affine = affine_of(expr)
            if affine.terms != ((expr, 1),):
                return self.affine(affine)
        a, b = self.value(expr.a), self.value(expr.b)
        if self.mask is not None and expr.op in ("floordiv", "truncdiv") and a.lanes != b.lanes:
            a, b = self.e.align_lanes(a, b)
        return arithmetic.binary(self.e, expr.op, a, b, expr.a.dtype)

    def _iterate(self, expr: Iterate) -> Value:
        """Emit the loop for some lanes at a time, each as a scalar, until none changes.

        What it loads depends on what it loaded before: several such chains hide each other's latency, and scalar loads
        take no more time than gathers.
        """
        if self.lanes is None:
            return self._iterate_points(expr, [self])[0]
        points = [self._at_lane(lane) for lane in range(self.lanes.count)]
        result = Value("poison", compute_type(expr.dtype), self.lanes.count)
        for start in range(0, len(points), _CHAINS):
            for lane, value in enumerate(self._iterate_points(expr, points[start : start + _CHAINS]), start):
                result = self.e.insert(result, value, lane)
        return result

    def _at_lane(self, lane: int) -> Expressions:
        """Return the expressions at one lane; lanes that stand for no value repeat the last one that does."""
        assert self.lanes is not None
        offset: Value | int = lane
        if self.lanes.used is not None and lane:
            offset = self.e.intrinsic("smin", self.e.sub(self.lanes.used, 1), lane)
        first = self.axes[self.lanes.axis]
        return Expressions(self.memory, {**self.axes, self.lanes.axis: self.e.add(first, offset)})

    def _iterate_points(self, expr: Iterate, points: Sequence[Expressions]) -> list[Value]:
        states = [point.value(expr.init) for point in points]
        if not expr.count:
            return states
        outer = [point.known for point in points]

        def has_changed(now: list[Value]) -> Value:
            predicate = "une" if now[0].is_float else "ne"
            return reduce(lambda a, b: self.e.binary("or", a, b), map(partial(self.e.compare, predicate), now, before))

        with self.e.loop(0, expr.count, states, runs=True, more=has_changed) as (_, carried):
            before = list(carried)
            for n, point in enumerate(points):
                point.known = {**outer[n], expr.state: before[n]}
                carried[n] = point.value(expr.body)
        for point, known in zip(points, outer, strict=True):
            point.known = known
        return carried

    # --- indices --------------------------------------------------------------------------------------------------
    def affine(self, affine: Affine) -> Value:
        """Return the sum, a vector when it differs from lane to lane."""
        if self.lanes is None:
            return self.first(affine)
        step = affine.coefficient(self.lanes.axis)
        if step == 0:
            return self.first(affine)
        if step is not None:
            steps = self.e.mul(iota(self.lanes.count), self.memory.dim(step))
            return self.e.add(self.first(affine), steps)
        total = self.memory.dim(affine.constant)
        for atom, coefficient in affine.terms:
            term = self.affine(affine_of(atom)) if isinstance(atom, Axis) else self.value(atom)
            total = self.e.add(total, self.e.mul(term, self.memory.dim(coefficient)))
        return total

    def first(self, affine: Affine) -> Value:
        """Return the sum at the first lane; its terms must step evenly.

        Outer terms are added first, so that they stay outside of inner loops.
        """
        terms: list[Value] = [self.memory.dim(affine.constant)]
        for atom, coefficient in affine.terms:
            value = self.axes[atom.name] if isinstance(atom, Axis) else self.value(atom)
            terms.append(self.e.mul(value, self.memory.dim(coefficient)))
        terms.sort(key=lambda term: term.depth)
        return reduce(self.e.add, terms)

    # --- loads and stores -----------------------------------------------------------------------------------------
    def _load(self, expr: Load) -> Value:
        offset = self.memory.offset(expr.buffer, expr.indices)
        stored = self._read(expr.buffer, offset)
        return decode(self.e, stored, expr.dtype, self.memory.has_half)

    def word(self, first: Load) -> Value:
        """Return four bytes as an int32, from a load of the first on; it is the same in every lane."""
        return self.memory.load_word(first.buffer, self.first(self.memory.offset(first.buffer, first.indices)))

    def _read(self, buffer: Buffer, offset: Affine) -> Value:
        step = offset.coefficient(self.lanes.axis) if self.lanes else 0
        if step == 0 and self.mask is None and self._is_alike(offset):  # under a condition it may be invalid
            return self.memory.load(buffer, self.first(offset))
        assert self.lanes is not None
        mask, count = self._whole_mask(), self.lanes.count
        if step is None and (choice := _choice_of_index(offset)) is not None:
            return self._read_either(buffer, offset, choice)
        if step == 1 and self._is_alike(offset):
            return self.memory.load(buffer, self.first(offset), count, mask)
        if step == -1 and mask is None:
            return self.memory.load_reversed(buffer, self.first(offset), count)
        if isinstance(step, int) and 2 <= step <= MOST_STRIDE and self.mask is None:
            return self.memory.load_strided(buffer, self.first(offset), step, count, self.lanes.used)
        return self.memory.gather(buffer, self.affine(offset), count, mask)

    def _read_either(self, buffer: Buffer, offset: Affine, choice: Select) -> Value:
        """Decide by a branch on an index that is the same choice for all points (a broadcast known only now)."""
        assert self.lanes is not None
        count = self.lanes.count

        def read(index: Expr) -> Value:
            return self._read(buffer, offset.with_atom(choice, affine_of(index)))

        return self._branch(choice, count, read)

    def load_transposed(self, load: Load, offset: Affine) -> list[Value]:
        """Return the load at as many consecutive points as there are lanes, where these are contiguous."""
        assert self.lanes is not None
        step = offset.coefficient(self.lanes.axis)
        assert step is not None
        start, row = self.first(offset), self.memory.dim(step)
        places = [self.e.add(start, self.e.mul(row, n)) for n in range(self.lanes.count)]
        rows = [self.memory.load(load.buffer, place, self.lanes.count) for place in places]
        return [decode(self.e, column, load.dtype, self.memory.has_half) for column in self.e.transpose(rows)]

    def _is_alike(self, offset: Affine) -> bool:
        """Return True when lanes differ by their axis alone: what is loaded under a condition may differ otherwise."""
        return all(isinstance(atom, Axis) or self.value(atom).lanes == 1 for atom, _ in offset.terms)

    def lanes_in_use(self) -> Value | None:
        """Return a mask of the lanes that stand for a value; None: all."""
        if self.lanes is None or self.lanes.used is None:
            return None
        return self.e.lanes_below(self.lanes.count, self.lanes.used)

    def _whole_mask(self) -> Value | None:
        """Lanes that stand for a value and for which the conditions hold."""
        in_use = self.lanes_in_use()
        if self.mask is None or in_use is None:
            return self.mask or in_use
        return self.e.binary("and", self.mask, in_use)

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Value) -> None:
        """Write an element, or the lanes' elements."""
        offset = self.memory.offset(buffer, indices)
        stored = encode(self.e, value, buffer.dtype, self.memory.has_half)
        if self.lanes is None:
            self.memory.store(buffer, self.first(offset), stored)
            return
        stored = self.e.broadcast(stored, self.lanes.count)
        if offset.coefficient(self.lanes.axis) == 1:
            self.memory.store(buffer, self.first(offset), stored, self.lanes_in_use())
            return
        if offset.coefficient(self.lanes.axis) == -1 and self.lanes.used is None:
            self.memory.store_reversed(buffer, self.first(offset), stored)
            return
        self.memory.scatter(
            buffer, self.e.broadcast(self.affine(offset), self.lanes.count), stored, self.lanes_in_use()
        )

    # --- conditions -----------------------------------------------------------------------------------------------
    def _select(self, expr: Select) -> Value:
        condition = self.value(expr.condition)
        if condition.ref in ("true", "false"):
            return self.value(expr.a if condition.ref == "true" else expr.b)
        if not _needs_guard(expr.a) and not _needs_guard(expr.b):
            return self.e.select(condition, self.value(expr.a), self.value(expr.b))
        if condition.lanes > 1:
            return self._select_lanes(condition, expr)
        return self._select_branch(expr)

    def _select_lanes(self, condition: Value, expr: Select) -> Value:
        opposite = self.e.binary("xor", condition, 1)
        a = self._evaluate_masked(expr.a, condition)
        b = self._evaluate_masked(expr.b, opposite)
        return self.e.select(condition, a, b)

    def _evaluate_masked(self, expr: Expr, condition: Value) -> Value:
        if not _needs_guard(expr):
            return self.value(expr)
        outer_mask, outer_known = self.mask, self.known
        self.mask = condition if outer_mask is None else self.e.binary("and", outer_mask, condition)
        self.known = dict(outer_known)
        result = self.value(expr)
        self.mask, self.known = outer_mask, outer_known
        return result

    def _select_branch(self, expr: Select) -> Value:
        # Both sides must come back as the same type, so where the lanes differ, both are broadcast.
        lanes = self.lanes.count if self.lanes and (self._varies(expr.a) or self._varies(expr.b)) else 1
        return self._branch(expr, lanes, self.value)

    def _branch(self, choice: Select, lanes: int, evaluate: Callable[[Expr], Value]) -> Value:
        """Return one side or the other, as a vector of `lanes`.

        What is known from within a side is forgotten after it.
        """
        condition = self.value(choice.condition)

        def arm(side: Expr) -> list[Value]:
            outer = self.known
            self.known = dict(outer)
            result = self.e.broadcast(evaluate(side), lanes)
            self.known = outer
            return [result]

        return self.e.branch(condition, lambda: arm(choice.a), lambda: arm(choice.b))[0]

    def _varies(self, expr: Expr) -> bool:
        assert self.lanes is not None
        if self.mask is not None or self.lanes.axis in axes_of(expr):
            return True
        return any(self.known[part].lanes > 1 for part in walk(expr) if part in self.known)


def _needs_guard(expr: Expr) -> bool:
    """Return True when the expression has a load, which is safe only where its condition holds."""
    return any(isinstance(e, Load) for e in walk(expr))


def _choice_of_index(offset: Affine) -> Select | None:
    """Return a term of an offset that chooses between indices, by a condition on sizes alone."""
    choices = (atom for atom, _ in offset.terms if isinstance(atom, Select) and not axes_of(atom.condition))
    return next((choice for choice in choices if not _needs_guard(choice)), None)
