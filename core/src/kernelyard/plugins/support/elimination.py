"""Elimination: what converters emit for determinants, inverses and systems of equations of small matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelyard.ir import Constant, Expr
from kernelyard.plugins.support.op_emitter import OpEmitter

MAX_ROWS = 16  # of a matrix: each is a step of the program


@dataclass(frozen=True)
class Elimination:
    """The elimination of (..., n, n) matrices by Gauss and Jordan, the row with the largest number first.

    pivots: (..., n), with a zero where a matrix is singular. sign: (...), 1 or -1, of the order in which the rows came.
    beside: (..., n, m), the inverse times what stood beside the matrix; of a singular one without meaning.
    """

    emitter: OpEmitter
    pivots: Expr
    sign: Expr
    beside: Expr

    @classmethod
    def of(cls, emitter: OpEmitter, x: Expr, beside: Expr | None = None) -> Elimination:
        """Emit the steps, written out, for float32 or float64. beside: (..., n, m), nothing if None.

        Raises: RejectedError for matrices of open size, or of more than `MAX_ROWS` rows.
        """
        *outer, _, n = emitter.shape(x)
        if not cls.is_possible(emitter, x) or not isinstance(n, int):
            emitter.reject(f"its matrices have {n} rows; 1 to {MAX_ROWS} are supported")
        rank = len(outer) + 2
        both = x if beside is None else emitter.concat([x, beside], rank - 1)
        sign, pivots = emitter.full(1, (*outer, 1, 1), emitter.dtype(x)), []
        for k in range(n):
            both, is_in_place = _swap_in_pivot(emitter, both, k)
            sign = emitter.op("where", is_in_place, sign, emitter.op("negative", sign))
            both, pivot = _eliminate_column(emitter, both, k)
            pivots.append(pivot)
        rest = emitter.slice(both, rank - 1, n, emitter.shape(both)[-1])
        pivot_row = emitter.reshape(emitter.concat(pivots, rank - 2), (*outer, n))
        return cls(emitter, pivot_row, emitter.reshape(sign, outer), rest)

    @staticmethod
    def is_possible(emitter: OpEmitter, x: Expr) -> bool:
        """Return True for matrices that are small enough."""
        n = emitter.shape(x)[-1]
        return isinstance(n, int) and 1 <= n <= MAX_ROWS

    @property
    def determinant(self) -> Expr:
        """The determinants, (...)."""
        product = self.emitter.op("prod", self.pivots, axes=(self._last,))
        return self.emitter.op("multiply", self.sign, product)

    @property
    def log_determinant(self) -> tuple[Expr, Expr]:
        """The signs of the determinants, 0 of a singular matrix, and the logarithms of their absolute values."""
        signs = self.emitter.op("prod", self.emitter.op("sign", self.pivots), axes=(self._last,))
        logarithms = self.emitter.op("log", self.emitter.op("abs", self.pivots))
        return self.emitter.op("multiply", self.sign, signs), self.emitter.op("sum", logarithms, axes=(self._last,))

    @property
    def _last(self) -> int:
        return self.emitter.rank(self.pivots) - 1


def _swap_in_pivot(emitter: OpEmitter, both: Expr, k: int) -> tuple[Expr, Expr]:
    """Exchange row k with that which has the largest number in column k, of those that follow; and is it row k?"""
    *_, n, _ = emitter.shape(both)
    rank, numbers = emitter.rank(both), _numbers(emitter, both)
    column = emitter.op("abs", emitter.slice(both, rank - 1, k, k + 1))
    below = emitter.op("argmax", emitter.slice(column, rank - 2, k, n), axis=rank - 2, keepdims=True)
    found = emitter.op("add", below, k)
    order = emitter.op("where", emitter.op("equal", numbers, found), np.array(k), numbers)
    order = emitter.op("where", emitter.op("equal", numbers, k), found, order)
    swapped = emitter.op("gather_elements", both, emitter.broadcast_to(order, emitter.shape(both)), axis=rank - 2)
    return swapped, emitter.op("equal", found, k)


def _eliminate_column(emitter: OpEmitter, both: Expr, k: int) -> tuple[Expr, Expr]:
    """Make row k the only one with a number in column k, which becomes 1; and return what it was."""
    rank = emitter.rank(both)
    row = emitter.slice(both, rank - 2, k, k + 1)
    pivot = emitter.slice(row, rank - 1, k, k + 1)
    one = emitter.full(1, (), emitter.dtype(both))
    row = emitter.op("divide", row, emitter.op("where", emitter.op("equal", pivot, 0), one, pivot))
    others = emitter.op("subtract", both, emitter.op("multiply", emitter.slice(both, rank - 1, k, k + 1), row))
    return emitter.op("where", emitter.op("equal", _numbers(emitter, both), k), row, others), pivot


def _numbers(emitter: OpEmitter, both: Expr) -> Expr:
    *_, n, _ = emitter.shape(both)
    assert isinstance(n, int)
    return Constant(np.arange(n).reshape(n, 1))
