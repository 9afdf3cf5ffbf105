"""ShapeTable: the shapes of a program's registers, for one set of sizes after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from kernelyard.dims import DimTable, Shape
from kernelyard.errors import ShapeError
from kernelyard.records import NamedTuple
from kernelyard.runtime.abi.memory import nbytes_of
from kernelyard.runtime.abi.solve_symbols import DimValues
from kernelyard.runtime.program.program import Program


class Row(NamedTuple):
    """A shape that registers have, and the number of bytes that it takes."""

    shape: tuple[int, ...]
    nbytes: int


class ShapeTable:
    """Evaluates each distinct type of a program's registers once for a set of sizes, and the fixed ones once for all.

    Most registers of a program share their types with others: the layers of a network are alike.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        numbers: dict[tuple[Shape, str], int] = {}
        self._row_of = [numbers.setdefault((each.shape, each.dtype), len(numbers)) for each in program.registers]
        self._rows = [Row((), 0)] * len(numbers)
        self._varying: list[tuple[int, int, int]] = []  # rows: their numbers, their ranks, bytes of an element
        for (shape, dtype), number in numbers.items():
            fixed = tuple([dim for dim in shape if isinstance(dim, int) and dim >= 0])
            if len(fixed) == len(shape):
                self._rows[number] = Row(fixed, nbytes_of(fixed, dtype))
            else:
                self._varying.append((number, len(shape), nbytes_of((), dtype)))
        types = list(numbers)
        self._dims = DimTable([dim for number, _, _ in self._varying for dim in types[number][0]])
        self._aliases = {
            (self._row_of[each.source], self._row_of[number]): number
            for number, each in reversed(list(enumerate(program.registers)))
            if each.kind == "alias"
        }

    def at(self, values: Mapping[str, int]) -> list[Row]:
        """Return the shape of each register. Raises: ShapeError naming the step that cannot work on such sizes."""
        try:
            found = self._dims(values)
        except ShapeError as error:
            raise self._error(self._unknown(values), values, error.message) from error
        rows, first = self._rows.copy(), 0
        for number, rank, itemsize in self._varying:
            shape = tuple(found[first : first + rank])
            if min(shape) < 0:
                message = f"the shape {shape} has a negative size"
                raise self._error(self._row_of.index(number), values, message)
            rows[number] = Row(shape, itemsize * prod(shape))
            first += rank
        for (source, number), register in self._aliases.items():
            if rows[source].nbytes != rows[number].nbytes:
                message = f"{rows[source].shape} cannot be reshaped to {rows[number].shape}"
                raise self._error(register, values, message)
        return [rows[number] for number in self._row_of]

    def _unknown(self, values: Mapping[str, int]) -> int:
        """Return the first register whose shape has no value."""
        known = DimValues(values)
        for register, each in enumerate(self._program.registers):
            try:
                known.shape(each.shape)
            except ShapeError:
                return register
        return 0

    def _error(self, register: int, values: Mapping[str, int], message: str) -> ShapeError:
        root = self._program.root(register)
        makers: Sequence[str] = [step.label or step.symbol for step in self._program.steps if root in step.outputs]
        return misfit(next(iter(makers), None), values, message)


def misfit(where: str | None, values: Mapping[str, int], message: str) -> ShapeError:
    """Return the error for sizes that do not fit together."""
    given = ", ".join(f"{name} = {value}" for name, value in sorted(values.items()))
    return ShapeError(f"the sizes of the inputs are inconsistent: {message}", where=where, found=given or None)
