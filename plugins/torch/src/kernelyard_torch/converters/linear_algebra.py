"""Determinants, inverses, systems of equations and Cholesky factors of matrices of known size."""

from __future__ import annotations

import numpy as np

from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Constant, Elimination, Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter


@converter("aten._linalg_det.default")
def determinant(node: Node, x: Expr) -> list[Expr | None]:
    _refuse_decomposition(node, 1, 2)
    possible = Elimination.is_possible(node, x)
    return [Elimination.of(node, x).determinant if possible else node.op("det", x), None, None]


@converter("aten._linalg_slogdet.default")
def log_determinant(node: Node, x: Expr) -> list[Expr | None]:
    _refuse_decomposition(node, 2, 3)
    return [*Elimination.of(node, x).log_determinant, None, None]


@converter("aten.linalg_inv_ex.default")
def inverse(node: Node, x: Expr, check_errors: bool) -> list[Expr]:
    size = node.require_fixed(node.shape(x)[-1], "the size of its matrices")
    unit = Constant(np.eye(size, dtype=to_numpy(node.dtype(x))))
    done = Elimination.of(node, x, node.broadcast_to(unit, node.shape(x)))
    return [done.beside, first_zero(node, done.pivots)]


@converter("aten._linalg_solve_ex.default")
def solve(node: Node, a: Expr, b: Expr, left: bool, check_errors: bool) -> list[Expr | None]:
    """Solve AX = B, or XA = B by the transposed matrices; b: also a vector for each matrix."""
    _refuse_decomposition(node, 1, 2)
    is_vector = node.rank(b) == 1 or (node.rank(b) == node.rank(a) - 1 and node.shape(b) == node.shape(a)[:-1])
    b = node.unsqueeze(b, node.rank(b)) if is_vector else b
    a, b = (a, b) if left else (_transpose(node, a), _transpose(node, b))
    info = first_zero(node, Elimination.of(node, a).pivots) if node.is_used(3) else None
    outer = node.result.shape[: -1 if is_vector else -2]
    a, b = (node.broadcast_to(each, (*outer, *node.shape(each)[-2:])) for each in (a, b))
    x = Elimination.of(node, a, b).beside
    x = x if left else _transpose(node, x)
    return [node.reshape(x, node.result.shape), None, None, info]


@converter("aten.linalg_solve_triangular.default")
def solve_triangular(node: Node, a: Expr, b: Expr, upper: bool, left: bool, unitriangular: bool) -> Expr:
    """Solve AX = B, or XA = B, of what lies on one side of A's diagonal."""
    size = node.require_fixed(node.shape(a)[-1], "the size of its matrices")
    kept = np.triu(np.ones((size, size), bool), unitriangular)
    a = node.op("where", Constant(kept if upper else kept.T), a, node.full(0, (), node.dtype(a)))
    if unitriangular:
        a = node.op("add", a, Constant(np.eye(size, dtype=to_numpy(node.dtype(a)))))
    a, b = (a, b) if left else (_transpose(node, a), _transpose(node, b))
    outer = node.result.shape[:-2]
    a, b = (node.broadcast_to(each, (*outer, *node.shape(each)[-2:])) for each in (a, b))
    x = Elimination.of(node, a, b).beside
    return x if left else _transpose(node, x)


@converter("aten.cholesky_solve.default", "aten._cholesky_solve_helper.default")
def solve_by_cholesky(node: Node, b: Expr, factor: Expr, upper: bool) -> Expr:
    outer = node.result.shape[:-2]
    factor, b = (node.broadcast_to(each, (*outer, *node.shape(each)[-2:])) for each in (factor, b))
    return Elimination.of(node, _square(node, factor, upper), b).beside


@converter("aten.cholesky_inverse.default")
def invert_by_cholesky(node: Node, factor: Expr, upper: bool) -> Expr:
    size = node.require_fixed(node.shape(factor)[-1], "the size of its matrices")
    unit = Constant(np.eye(size, dtype=to_numpy(node.dtype(factor))))
    return Elimination.of(node, _square(node, factor, upper), node.broadcast_to(unit, node.shape(factor))).beside


def _square(node: Node, factor: Expr, upper: bool) -> Expr:
    """Return the matrix that a Cholesky factor is of; what lies on the other side of the diagonal is not read."""
    size = node.require_fixed(node.shape(factor)[-1], "the size of its matrices")
    kept = np.triu(np.ones((size, size), bool))
    factor = node.op("where", Constant(kept if upper else kept.T), factor, node.full(0, (), node.dtype(factor)))
    turned = _transpose(node, factor)
    return node.op("matmul", *((turned, factor) if upper else (factor, turned)))


@converter("aten.linalg_cholesky_ex.default")
def cholesky(node: Node, x: Expr, upper: bool, check_errors: bool) -> list[Expr]:
    """Factor column by column: divide it by the root of its pivot, and subtract its products from the rest."""
    if not Elimination.is_possible(node, x):
        node.reject(f"its matrices have {node.shape(x)[-1]} rows, which is not supported")
    n, last = node.require_fixed(node.shape(x)[-1], "the size of its matrices"), node.rank(x) - 1
    x, numbers = _transpose(node, x) if upper else x, Constant(np.arange(n).reshape(n, 1))
    columns, pivots = [], []
    for k in range(n):
        column = node.slice(x, last, k, k + 1)
        pivots.append(node.slice(column, last - 1, k, k + 1))
        column = node.op("divide", column, node.op("sqrt", pivots[-1]))
        column = node.op("where", node.op("less", numbers, k), node.full(0, (), node.dtype(x)), column)
        x = node.op("subtract", x, node.op("multiply", column, _transpose(node, column)))
        columns.append(column)
    factor = node.concat(columns, last)
    pivot_row = node.reshape(node.concat(pivots, last), node.shape(x)[:-1])
    is_definite = node.cast(node.op("greater", pivot_row, 0), node.dtype(x))
    return [_transpose(node, factor) if upper else factor, first_zero(node, is_definite)]


@converter("aten._linalg_check_errors.default")
def check_errors(node: Node, info: Expr, api_name: str, is_matrix: bool) -> None:
    """Emit nothing: an error by data would be an effect of the program."""


def first_zero(node: Node, pivots: Expr) -> Expr:
    """Return LAPACK's word of singular matrices: the number of the first zero pivot, from 1, or 0."""
    last, is_zero = node.rank(pivots) - 1, node.op("equal", pivots, 0)
    found = node.op("add", node.op("argmax", node.cast(is_zero, "int32"), axis=last), 1)
    found = node.op("where", node.op("any", is_zero, axes=(last,)), found, node.full(0, (), node.dtype(found)))
    return node.cast(found, "int32")


def _transpose(node: Node, x: Expr) -> Expr:
    rank = node.rank(x)
    return node.permute(x, [*range(rank - 2), rank - 1, rank - 2])


def _refuse_decomposition(node: Node, *results: int) -> None:
    if any(node.is_used(result) for result in results):
        node.reject("the LU decomposition that it gives is used, which is not supported")
