"""DimTable: evaluate the same dims for one set of values of their symbols after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelyard.dims.expression import BUILDERS, Dim, Function, Symbol, SymbolicDim, evaluate

LONG = 20

Compiled = Callable[[Mapping[str, int]], Sequence[int]]


class DimTable:
    """Evaluates dims: what they share once, and from the second time on by a Python function that is made of them.

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
        self._compiled: Compiled | None = None
        self._is_used = False

    def __call__(self, values: Mapping[str, int]) -> Sequence[int]:
        """Return the values of the dims, in order. Raises: ShapeError as `evaluate`."""
        if len(self._fixed) == len(self._dims):
            return self._fixed
        if self._compiled is None and self._is_used:  # many tables are used once: compiling takes as long as ten times
            self._compiled = compile_dims(self._dims)
        self._is_used = True
        if self._compiled is not None:
            try:
                return self._compiled(values)
            except KeyError:
                pass  # the error below says which dim is not known
        known: dict[Dim, int] = {}
        for dim in self._dims:
            if dim not in known:
                known[dim] = evaluate(dim, values)
        return tuple([known[dim] for dim in self._dims])


def compile_dims(dims: Sequence[Dim]) -> Compiled:
    """Return a Python function of the symbols' values that gives those of dims. It raises: ShapeError; KeyError."""
    lines = _Lines()
    results = [lines.of(dim) for dim in dims]
    text = "\n    ".join(["def function(values):", *lines.text, f"return ({', '.join(results)},)"])
    scope: dict[str, Any] = {**BUILDERS, "prod": math.prod}
    exec(text, scope)  # of numbers, names that are made here, and literals of strings
    return scope["function"]


class _Lines:
    """Lines of Python: one for each distinct symbol, function and dim."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._names: dict[object, str] = {}

    def of(self, dim: Dim) -> str:
        """Return the text of a dim's value, once the lines were run."""
        return str(dim) if isinstance(dim, int) else self._name(dim, lambda: self._sum(dim))

    def _sum(self, dim: SymbolicDim) -> str:
        products = [_chain("*", "prod", [str(factor), *map(self._atom, atoms)]) for atoms, factor in dim.terms]
        return _chain("+", "sum", products)

    def _atom(self, atom: object) -> str:
        if isinstance(atom, Function):
            return self._name(atom, lambda: f"{atom.name}({self.of(atom.left)}, {self.of(atom.right)})")
        assert isinstance(atom, Symbol)
        return self._name(atom, lambda: f"values[{atom.name!r}]")

    def _name(self, key: object, write: Callable[[], str]) -> str:
        if key not in self._names:
            text = write()
            self._names[key] = f"v{len(self._names)}"
            self.text.append(f"{self._names[key]} = {text}")
        return self._names[key]


def _chain(operator: str, function: str, items: Sequence[str]) -> str:
    """Return the text of a sum or product; one of many items would nest too deeply for Python's compiler."""
    return operator.join(items) if len(items) <= LONG else f"{function}(({', '.join(items)}))"
