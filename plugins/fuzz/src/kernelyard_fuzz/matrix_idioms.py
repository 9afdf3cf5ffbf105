"""Idioms of matrices: determinants, inverses, systems of equations and Cholesky factors as frontends write them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernelyard.ir import Constant, Expr, Var
from kernelyard.plugins.support.elimination import Elimination
from kernelyard.plugins.support.op_emitter import OpEmitter, Operand
from kernelyard_fuzz.writer import RefusedError, Writer

MOST_ROWS = 4  # each is a dozen operators


class SketchEmitter(OpEmitter):
    """Emit the operators of converters into a sketch."""

    def __init__(self, writer: Writer) -> None:
        self._sketch = writer.sketch

    def op(self, name: str, *args: Operand, **attrs: Any) -> Expr:
        """Add an operator of one result. Raises: RefusedError."""
        made = self._sketch.op(name, *self.operands(args), **attrs)
        if made is None:
            raise RefusedError(name)
        return made

    def ops(self, name: str, *args: Operand, **attrs: Any) -> list[Expr]:
        """Refuse operators of several results: no idiom here has any."""
        raise RefusedError(name)


def _matrices(w: Writer, x: Var) -> Var:
    """Return small matrices of a value's numbers, sums of squares with something on the diagonal; or any."""
    rows = w.of_rank(x, w.chooser.pick((2, 2, 3)))
    last = rows.tensor_type.rank - 1
    n, size = w.chooser.between(1, MOST_ROWS), int(rows.tensor_type.shape[-2])  # pyright: ignore[reportArgumentType]
    if size < n:
        raise RefusedError("matmul")
    rows = w.op("strided_slice", rows, axes=(last - 1,), begin=(0,), end=(n,), strides=(1,))
    if w.chooser.chance(20):  # of any numbers
        columns = w.weights(int(rows.tensor_type.shape[-1]), n)  # pyright: ignore[reportArgumentType]
        return w.op("matmul", rows, columns)
    other = w.op("permute_dims", rows, axes=(*range(last - 1), last, last - 1))
    return w.op("add", w.op("matmul", rows, other), Constant(np.eye(n, dtype=np.float32)))


def _determinant(w: Writer, x: Var) -> Expr:
    matrices = _matrices(w, x)
    if w.chooser.chance(30):
        return w.op("det", matrices)
    found = Elimination.of(SketchEmitter(w), matrices)
    return w.chooser.pick((found.determinant, found.pivots))


def _inverse(w: Writer, x: Var) -> Expr:
    """Inverses, or solutions of equations with several right sides."""
    emitter, matrices = SketchEmitter(w), _matrices(w, x)
    *outer, n, _ = emitter.shape(matrices)
    assert isinstance(n, int)
    beside = Constant(np.eye(n, dtype=np.float32)) if w.chooser.chance(50) else w.weights(n, w.chooser.between(1, 3))
    return Elimination.of(emitter, matrices, emitter.broadcast_to(beside, (*outer, *emitter.shape(beside)))).beside


def _cholesky(w: Writer, x: Var) -> Expr:
    """Factors column by column, which products are subtracted for."""
    emitter, rest = SketchEmitter(w), _matrices(w, x)
    last, n = emitter.rank(rest) - 1, emitter.shape(rest)[-1]
    assert isinstance(n, int)
    numbers, columns = Constant(np.arange(n).reshape(n, 1)), []
    for k in range(n):
        column = emitter.slice(rest, last, k, k + 1)
        column = emitter.op("divide", column, emitter.op("sqrt", emitter.slice(column, last - 1, k, k + 1)))
        columns.append(emitter.op("where", emitter.op("less", numbers, k), emitter.full(0, (), "float32"), column))
        row = emitter.permute(columns[-1], (*range(last - 1), last, last - 1))
        rest = emitter.op("subtract", rest, emitter.op("multiply", columns[-1], row))
    return emitter.concat(columns, last)


MATRIX_IDIOMS: Mapping[str, Callable[[Writer, Var], Expr]] = {
    "determinant": _determinant,
    "inverse": _inverse,
    "cholesky": _cholesky,
}
