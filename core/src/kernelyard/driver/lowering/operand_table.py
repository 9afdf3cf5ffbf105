"""OperandTable: where the values of a function are kept while it is lowered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kernelyard.errors import CodegenError
from kernelyard.ir import Call, Constant, Expr, Tuple, TupleGetItem, Var
from kernelyard.ir.types import leaves_of


@dataclass(kw_only=True)
class OperandTable(ABC):
    """Number the tensors and closures of a function's values: as registers of a Program, or as values of a VMFunction.

    of: the numbers of each variable, one per tensor or closure in it. constants: arrays by digest. reference_calls: the
    calls left to the reference module, by symbol.
    """

    of: dict[Var, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    reference_calls: dict[str, Call] = field(default_factory=dict)
    constant_numbers: dict[str, int] = field(default_factory=dict)

    @abstractmethod
    def add_constant(self, constant: Constant) -> int:
        """Return the number of a place for a constant that has none yet."""

    def operand(self, expr: Expr) -> tuple[int, ...]:
        """Return the numbers of an operand's parts. Raises: CodegenError for what is computed nowhere."""
        if isinstance(expr, Var):
            return self.of[expr]
        if isinstance(expr, Tuple):
            return self.operands(expr.fields)
        if isinstance(expr, Constant):
            return (self._constant(expr),)
        raise CodegenError("this cannot be an operand of a compiled call", found=repr(expr))

    def operands(self, exprs: Sequence[Expr]) -> tuple[int, ...]:
        """Return the numbers of several operands, one after another."""
        return tuple(number for expr in exprs for number in self.operand(expr))

    def item(self, value: TupleGetItem) -> tuple[int, ...]:
        """Return the numbers of one field of a tuple."""
        counts = [len(leaves_of(each)) for each in getattr(value.tuple_value.type, "fields", ())]
        first = sum(counts[: value.index])
        return self.operand(value.tuple_value)[first : first + counts[value.index]]

    def _constant(self, constant: Constant) -> int:
        digest = constant.digest
        if digest not in self.constant_numbers:
            self.constants[digest] = constant.data
            self.constant_numbers[digest] = self.add_constant(constant)
        return self.constant_numbers[digest]
