"""Splices: groups of operators as a backend's patterns describe them, put into a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelyard.ir import Constant, Expr, Op, Var, get_op
from kernelyard.patterns import FusionPattern
from kernelyard.patterns.language.pattern import (
    AndPattern,
    AttrPattern,
    CallPattern,
    ConstantPattern,
    DtypePattern,
    ExprPattern,
    OrPattern,
    Pattern,
    TupleGetItemPattern,
    VarPattern,
    WildcardPattern,
    WrapperPattern,
)
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.operators import grow, grow_exactly, samples_of
from kernelyard_fuzz.sketch import Sketch, Spliced

LEAVES = (WildcardPattern, ConstantPattern, VarPattern, ExprPattern)


class _NoSpliceError(Exception):
    """A part of a pattern cannot be made with what the graph has."""


def splice(chooser: Chooser, sketch: Sketch, pattern: FusionPattern) -> Var | None:
    """Add operators that a pattern may match; return the last, or None where that does not come about.

    Now and then something is not quite as the pattern says: an attribute, or an operand that is the same value twice.
    """
    before = sketch.mark()
    building = _Splice(chooser, sketch)
    try:
        made = building.build(pattern.pattern, {})
    except _NoSpliceError:
        sketch.undo(before)
        return None
    if not isinstance(made, Var):
        return None
    sketch.spliced.append(Spliced(pattern, made, building.made))
    return made


class _Splice:
    """One pattern that is being built; `made` has the values that its parts stand for."""

    def __init__(self, chooser: Chooser, sketch: Sketch) -> None:
        self.chooser, self.sketch = chooser, sketch
        self.made: dict[Pattern, Expr] = {}
        self.is_connected = not sketch.values

    def build(self, pattern: Pattern, attrs: Mapping[str, Any], like: np.ndarray | None = None) -> Expr:
        """Return a value that a pattern may match, with these attributes of the call; `like`: of such a rank."""
        if pattern not in self.made:
            self.made[pattern] = self._build_new(pattern, attrs, like)
        return self.made[pattern]

    def _build_new(self, pattern: Pattern, attrs: Mapping[str, Any], like: np.ndarray | None) -> Expr:
        if isinstance(pattern, AttrPattern):
            return self.build(pattern.pattern, {**attrs, **dict(pattern.attrs)}, like)
        if isinstance(pattern, WrapperPattern):
            return self.build(pattern.pattern, attrs, like)
        if isinstance(pattern, OrPattern):
            return self.build(pattern.left if self.chooser.chance(60) else pattern.right, attrs, like)
        if isinstance(pattern, AndPattern):
            return self.build(pattern.right if pattern.left.root_ops is None else pattern.left, attrs, like)
        if isinstance(pattern, TupleGetItemPattern):
            fields = self._call(pattern.tuple_value, attrs, None)
            return fields[pattern.index or 0] if len(fields) > (pattern.index or 0) else self._fail()
        return self._call(pattern, attrs, like)[0]

    def _call(self, pattern: Pattern, attrs: Mapping[str, Any], like: np.ndarray | None) -> list[Var]:
        while isinstance(pattern, WrapperPattern):
            pattern = pattern.pattern
        if not isinstance(pattern, CallPattern) or pattern.ops is None:
            return self._fail()
        op = get_op(self.chooser.pick(pattern.ops))
        leaves = {at: leaf for at, arg in enumerate(pattern.args) if (leaf := _leaf(arg)) is not None}
        given = self._inner(pattern, op) | self._find_known(leaves)
        made = self._grow(pattern, op, given, leaves, attrs, like) or self._fail()
        operands = self.sketch.operands_of(made[0])
        self.made.update({leaf: operands[at] for at, leaf in leaves.items() if at < len(operands)})
        return made

    def _inner(self, pattern: CallPattern, op: Op) -> dict[int, Expr]:
        """Build the operands that are calls themselves, of the ranks that a sample of the operator has."""
        samples = samples_of(op)
        arrays = self.chooser.pick(samples).inputs if samples else self._fail()
        inner = [(at, arg) for at, arg in enumerate(pattern.args) if _leaf(arg) is None]
        return {at: self.build(arg, {}, arrays[at] if at < len(arrays) else None) for at, arg in inner}

    def _find_known(self, leaves: Mapping[int, Pattern]) -> dict[int, Expr]:
        """Return operands that stand elsewhere in the pattern, and numbers."""
        known = {at: self.made[leaf] for at, leaf in leaves.items() if leaf in self.made}
        return known | {at: number for at, leaf in leaves.items() if (number := _number(leaf)) is not None}

    def _grow(
        self,
        pattern: CallPattern,
        op: Op,
        given: Mapping[int, Expr],
        leaves: Mapping[int, Pattern],
        attrs: Mapping[str, Any],
        like: np.ndarray | None,
    ) -> list[Var]:
        fixed = [at for at, leaf in leaves.items() if isinstance(leaf, ConstantPattern)]
        dtypes = {at: found for at, arg in enumerate(pattern.args) if (found := _dtypes(arg))}
        if not (given or dtypes or fixed or like is not None or self.is_connected) and self.chooser.chance(60):
            self.is_connected = True
            return grow(self.chooser, self.sketch, op, self.chooser.pick(self.sketch.values[-5:]), attrs=attrs)
        return grow_exactly(self.chooser, self.sketch, op, given, fixed, attrs, dtypes, like)

    def _fail(self) -> Any:
        raise _NoSpliceError


def _leaf(pattern: Pattern) -> Pattern | None:
    """Return the pattern without what is around it, where it stands for an operand from outside."""
    while isinstance(pattern, WrapperPattern):
        pattern = pattern.pattern
    if isinstance(pattern, OrPattern):
        return _leaf(pattern.left) if _leaf(pattern.right) is not None else None
    return pattern if isinstance(pattern, LEAVES) else None


def _number(leaf: Pattern) -> Expr | None:
    if isinstance(leaf, ExprPattern) and isinstance(leaf.expr, Constant):
        return leaf.expr
    if isinstance(leaf, ConstantPattern) and leaf.value is not None:
        return Constant(np.float32(leaf.value))
    return None


def _dtypes(pattern: Pattern) -> tuple[str, ...]:
    while isinstance(pattern, WrapperPattern):
        if isinstance(pattern, DtypePattern):
            return pattern.dtypes
        pattern = pattern.pattern
    return ()
