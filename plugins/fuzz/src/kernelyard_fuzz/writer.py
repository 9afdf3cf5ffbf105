"""Writer: operators added to a sketch by hand, with numbers that may be off and operands in any order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelyard.ir import Constant, Expr, Var
from kernelyard_fuzz import bins
from kernelyard_fuzz.bins import Interval
from kernelyard_fuzz.chooser import Chooser
from kernelyard_fuzz.sketch import Sketch

COMMUTATIVE = ("add", "multiply", "maximum", "minimum")
UNIT = Interval(0.25, 2.0)


class RefusedError(Exception):
    """An operator does not take these operands; what was made before it stays."""


class Writer:
    """Writes operators into a sketch, with numbers that may be off and operands in any order."""

    def __init__(self, chooser: Chooser, sketch: Sketch) -> None:
        self.chooser, self.sketch = chooser, sketch

    def op(self, name: str, *args: Expr | float, **attrs: Any) -> Var:
        """Add an operator; a sum with a number may be a difference of one. Raises: RefusedError."""
        if name == "add" and isinstance(args[-1], (int, float)) and self.chooser.chance(15):
            name, args = "subtract", (args[0], -args[-1])
        operands = [arg if isinstance(arg, Expr) else self.number(arg) for arg in args]
        if name in COMMUTATIVE and self.chooser.chance(50):
            operands.reverse()
        made = self.sketch.op(name, *operands, **attrs)
        if made is None:
            raise RefusedError(name)
        return made

    def number(self, value: float) -> Constant:
        """Return a number as a constant, one in ten near it or its negative."""
        if self.chooser.chance(10):
            value = self.chooser.pick((value * 1.02, -value, value + 1, 0.0, 1.0))
        return Constant(np.asarray(value, np.float32))

    def nearly(self, usual: Mapping[str, Any], others: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return the usual values of attributes, of which mostly one is another, now and then all are.

        Where several are unusual a backend has several reasons to decline, and none shows that another is forgotten.
        """
        if self.chooser.chance(10):
            return {**usual, **{name: self.chooser.pick(values) for name, values in others.items()}}
        name = self.chooser.pick(tuple(others))
        return {**usual, name: self.chooser.pick(others[name])}

    def vector(self, size: int, rank: int, axis: int) -> Constant:
        """Return one number for each element of an axis, as a constant that broadcasts; now and then one for all."""
        shape = [1] * rank
        if not self.chooser.chance(15):
            shape[axis] = size
        while len(shape) > 1 and shape[0] == 1 and self.chooser.chance(30):
            del shape[0]
        array = bins.array_in(self.chooser, tuple(shape), "float32", UNIT)
        if self.chooser.chance(10):
            array.reshape(-1)[:1] = 0
        return Constant(array * np.float32(self.chooser.pick((1.0, -1.0))))

    def weights(self, *shape: int) -> Expr:
        """Return weights: a constant, now and then a parameter."""
        array = self.array(*shape)
        return self.sketch.input(array) if self.chooser.chance(15) else Constant(array)

    def array(self, *shape: int) -> np.ndarray:
        """Return random floats between -1 and 1."""
        return bins.array_in(self.chooser, shape, "float32", Interval(-1.0, 1.0))

    def of_rank(self, x: Var, rank: int) -> Var:
        """Return a value's elements in that many axes, the first of them 1 where there are too few."""
        sizes = [int(size) for size in x.tensor_type.shape]  # pyright: ignore[reportArgumentType]
        if len(sizes) == rank:
            return x
        if len(sizes) > rank:
            sizes = [math.prod(sizes[: len(sizes) - rank + 1]), *sizes[len(sizes) - rank + 1 :]]
        return self.op("reshape", x, shape=(*[1] * (rank - len(sizes)), *sizes))
