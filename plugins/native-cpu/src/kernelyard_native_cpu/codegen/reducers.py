"""Reducers: what is carried from element to element of a reduction, and made of it in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from kernelyard.plugins.codegen_api import Binary, ComputeBlock, Expr, Load, neutral_element
from kernelyard_llvm.values import Value, iota, literal
from kernelyard_native_cpu.codegen import arithmetic
from kernelyard_native_cpu.codegen.byte_products import (
    DIGIT_BITS,
    SIGNS,
    add_dot_product,
    add_pairs_of_bytes,
    magnitude,
    sum_pairs,
    take_signs,
)
from kernelyard_native_cpu.codegen.expressions import Expressions, Lanes
from kernelyard_native_cpu.codegen.memory import Memory
from kernelyard_native_cpu.schedule.plan import Plan

Axes = dict[str, Value]
State = list[Value]
LanesAt = Callable[[Axes], Lanes | None]


class Reducer(ABC):
    """The accumulator of a reduction, for one point (or one per lane)."""

    def __init__(self, memory: Memory, block: ComputeBlock, plan: Plan, lanes_at: LanesAt) -> None:
        self.memory = memory
        self.e = memory.emitter
        self.block = block
        self.plan = plan
        self.lanes_at = lanes_at
        self.name = str(block.reducer)
        self.dtype = block.body.dtype

    def neutral(self) -> Value:
        """Return the identity element, in every lane."""
        element = neutral_element(self.name, self.dtype)
        return self.e.broadcast(arithmetic.constant(element.value, element.dtype), self.plan.lanes)

    def expressions(self, axes: Axes) -> Expressions:
        return Expressions(self.memory, axes, self.lanes_at(axes))

    def element(self, expressions: Expressions, mask: Value | None) -> Value:
        """Return the next element; neutral in lanes that the mask leaves out."""
        value = expressions.value(self.block.body)
        if mask is None:
            return value
        return self.e.select(mask, self.e.broadcast(value, mask.lanes), self.neutral())

    @abstractmethod
    def start(self, axes: Axes) -> State:
        """Return the state before the first element."""

    @abstractmethod
    def step(self, axes: Axes, state: State, mask: Value | None) -> State:
        """Return the state after the element at a point."""

    @abstractmethod
    def finish(self, axes: Axes, states: Sequence[State]) -> Value:
        """Return the result of several states of one point."""


class Combine(Reducer):
    """Sums, products, extrema, any and all."""

    def start(self, axes: Axes) -> State:
        return [self.neutral()]

    def step(self, axes: Axes, state: State, mask: Value | None) -> State:
        return [self._combine(state[0], self.element(self.expressions(axes), mask))]

    def start_of_group(self, axes: Axes) -> State:
        """Return the state before the first element of a group."""
        return self.start(axes)

    def sum_of_group(self, state: State) -> Value:
        """Return the sum along the inner reduced axes."""
        return state[0]

    def next_digit(self, state: State) -> State:
        """Return the state before products of the next digit, of which each is worth less."""
        return [self.e.binary("shl", value, DIGIT_BITS) for value in state]

    def add(self, axes: Axes, state: State, part: Value, shifted: Value | None) -> State:
        """Return the state with the sum along the inner reduced axes, times what is the same along them. shifted: the
        sum of what a zero point or a minimum is multiplied by."""
        factored, expressions = self.plan.factored, self.expressions(axes)
        assert factored is not None
        total = self.e.add(state[0], self.e.mul(expressions.value(factored.factor), part))
        if factored.shift is not None and shifted is not None:
            total = self.e.add(total, self.e.mul(expressions.value(factored.shift.by), shifted))
        return [total]

    def finish(self, axes: Axes, states: Sequence[State]) -> Value:
        total = states[0][0]
        for state in states[1:]:
            total = self._combine(total, state[0])
        if self.plan.vector_is_reduced:
            total = arithmetic.across_lanes(self.e, self.name, total, self.dtype)
        if self.block.init is None:
            return total
        lanes = None if self.plan.vector_is_reduced else self.lanes_at(axes)
        return self._combine(Expressions(self.memory, axes, lanes).value(self.block.init), total)

    def _combine(self, a: Value, b: Value) -> Value:
        return arithmetic.combine(self.e, self.name, a, b, self.dtype)


class DotProducts(Combine):
    """Sums of products of bytes, four at a time.

    Sums of `pmaddubsw` stay in 16 bits for a digit of a block, as a second value of the state.
    """

    def step(self, axes: Axes, state: State, mask: Value | None) -> State:
        dot = self.plan.dot_product
        assert dot is not None, "the plan has bytes"
        expressions, lanes = self.expressions(axes), self.plan.lanes
        unsigned, signed = (self._word(expressions, word) for word in (dot.of.unsigned, dot.of.signed))
        if dot.of.has_sign:
            unsigned = self.e.binary("xor", self.e.broadcast(unsigned, lanes), SIGNS)
        if dot.of.signs is not None:
            signed = take_signs(self.e, dot.instruction, signed, self._word(expressions, dot.of.signs), lanes)
        if dot.of.both_signed:
            signed = take_signs(self.e, dot.instruction, signed, unsigned, lanes)
            unsigned = magnitude(self.e, unsigned, lanes)
        if mask is not None:
            signed = self.e.select(mask, self.e.broadcast(signed, lanes), self.e.broadcast(literal(0, "i32"), lanes))
        if dot.in_16_bits:
            return [state[0], add_pairs_of_bytes(self.e, state[1], unsigned, signed)]
        return [add_dot_product(self.e, dot.instruction, state[0], unsigned, signed)]

    def _word(self, expressions: Expressions, word: Expr) -> Value:
        dot = self.plan.dot_product
        if dot is not None and isinstance(word, Load) and word in dot.of.of_memory:
            return expressions.word(word)
        return expressions.value(word)

    def start_of_group(self, axes: Axes) -> State:
        """Return the state before the first product of a block of integers."""
        return [self.e.broadcast(arithmetic.constant(0, "int32"), self.plan.lanes), *self._zero_pairs()]

    def sum_of_group(self, state: State) -> Value:
        """Return the sum of a block's products."""
        return self.e.add(state[0], sum_pairs(self.e, state[1])) if state[1:] else state[0]

    def next_digit(self, state: State) -> State:
        """Return the state before products of the next digit, of which each is worth less."""
        return [self.e.binary("shl", self.sum_of_group(state), DIGIT_BITS), *self._zero_pairs()]

    def _zero_pairs(self) -> State:
        dot = self.plan.dot_product
        is_narrow = dot is not None and dot.in_16_bits
        return [self.e.broadcast(literal(0, "i16"), 2 * self.plan.lanes)] if is_narrow else []

    def add(self, axes: Axes, state: State, part: Value, shifted: Value | None) -> State:
        """Return the state with what is made of the sum of a block."""
        dot, expressions = self.plan.dot_product, self.expressions(axes)
        assert dot is not None
        assert dot.sum is not None
        assert dot.block is not None
        expressions.known[dot.sum] = part
        total = state[0]
        for term in _terms(dot.block):
            total = self.e.add(total, expressions.value(term))
        return [total]


class Place(Reducer):
    """argmax and argmin: the most extreme element so far, and `arg` at it. Along reduced lanes the axis itself is
    kept in place of `arg`, so that the first of all lanes can be found in the end."""

    def start(self, axes: Axes) -> State:
        if self.plan.vector_is_reduced:
            return [self.neutral(), iota(self.plan.lanes)]
        return [self.neutral(), self.e.broadcast(self._arg(self.expressions(axes)), self.plan.lanes)]

    def _arg(self, expressions: Expressions) -> Value:
        assert self.block.arg is not None
        return expressions.value(self.block.arg)

    def step(self, axes: Axes, state: State, mask: Value | None) -> State:
        best, place = state
        expressions = self.expressions(axes)
        value = self.element(expressions, mask)
        if self.plan.vector_is_reduced:
            here = self.e.add(axes[str(self.plan.vector)], iota(self.plan.lanes))
        else:
            here = self._arg(expressions)
        wins = arithmetic.is_more_extreme(self.e, self.name, value, best, self.dtype)
        return [self.e.select(wins, value, best), self.e.select(wins, here, place)]

    def finish(self, axes: Axes, states: Sequence[State]) -> Value:
        ((best, place),) = states
        if not self.plan.vector_is_reduced:
            return place
        extreme = arithmetic.across_lanes(self.e, self.name.removeprefix("arg"), best, self.dtype)
        wins = arithmetic.binary(self.e, "eq", best, extreme, self.dtype)
        if best.is_float:
            wins = self.e.binary("or", wins, self.e.compare("uno", best, best))
        first = arithmetic.across_lanes(self.e, "min", self.e.select(wins, place, 2**62), "int64")
        return self._arg(Expressions(self.memory, {**axes, str(self.plan.vector): first}))


def _terms(expr: Expr) -> list[Expr]:
    """Return the terms of a sum, each of which one instruction multiplies and adds."""
    return [*_terms(expr.a), *_terms(expr.b)] if isinstance(expr, Binary) and expr.op == "add" else [expr]
