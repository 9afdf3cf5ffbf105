"""DimTable: evaluate the same dims for one set of values of their symbols after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from kernelyard.dims.expression import BUILDERS, Dim, Function, Symbol, SymbolicDim, evaluate

Line = Callable[[Sequence[int], Mapping[str, int]], int]
"""Gives a value, from those of the lines before it and from those of the symbols. Raises: ShapeError; KeyError."""


class DimTable:
    """Evaluates dims by straight-line code, which computes once what they share.

    Example:
        >>> from kernelyard.dims import symbol
        >>> n = symbol("n")
        >>> table = DimTable([n, 4 * n + 1, 7])
        >>> table({"n": 2}), table({"n": 3})
        ((2, 9, 7), (3, 13, 7))
    """

    def __init__(self, dims: Sequence[Dim]) -> None:
        self._dims = tuple(dims)
        self._fixed = tuple([dim for dim in dims if isinstance(dim, int)])
        self._code: _StraightLineCode | None = None  # many tables are never used

    def __call__(self, values: Mapping[str, int]) -> Sequence[int]:
        """Return the values of the dims, in order. Raises: ShapeError as `evaluate`."""
        if len(self._fixed) == len(self._dims):
            return self._fixed
        if self._code is None:
            self._code = _StraightLineCode(self._dims)
        try:
            return self._code.run(values)
        except KeyError:  # this says which dim is not known
            return tuple([evaluate(dim, values) for dim in self._dims])


class _StraightLineCode:
    """A line for each distinct symbol, number, function and dim, after those that it reads.

    Python's own compiler would take three times as long as making these lines does, which is as long as it takes to
    evaluate the dims one by one.
    """

    def __init__(self, dims: Sequence[Dim]) -> None:
        self._lines: list[Line] = []
        self._numbers: dict[object, int] = {}  # of lines, by what they give
        self._results = [self._line_of(dim) for dim in dims]

    def run(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """Return the values of the dims, in order. Raises: ShapeError; KeyError for a symbol without a value."""
        known: list[int] = []
        for line in self._lines:
            known.append(line(known, values))
        return tuple([known[number] for number in self._results])

    def _line_of(self, what: Dim | Symbol | Function) -> int:
        """Return the number of the line that gives this, written if it is not there."""
        number = self._numbers.get(what)  # once: what is equal is compared term by term
        if number is None:
            line = self._write(what)
            number = self._numbers[what] = len(self._lines)
            self._lines.append(line)
        return number

    def _write(self, what: Dim | Symbol | Function) -> Line:
        if isinstance(what, int):
            return lambda known, values: what
        if isinstance(what, Symbol):
            name = what.name
            return lambda known, values: values[name]
        if isinstance(what, Function):
            build, left, right = BUILDERS[what.name], self._line_of(what.left), self._line_of(what.right)
            return lambda known, values: cast("int", build(known[left], known[right]))
        return self._write_sum(what)

    def _write_sum(self, dim: SymbolicDim) -> Line:
        products = [(factor, [self._line_of(atom) for atom in atoms]) for atoms, factor in dim.terms]
        return lambda known, values: sum([math.prod([known[at] for at in ats], start=by) for by, ats in products])
