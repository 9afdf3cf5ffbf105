"""Weights that are looked up by index: multiply with the whole table, and look up the products."""

from __future__ import annotations

from kernelyard.ir import Expr, Function, IRModule
from kernelyard.patterns import Match, op, rewriter_of
from kernelyard.patterns.legality import leaking_intermediates
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext


class ReorderTakeAfterMatmul(FunctionPass):
    """`x @ take(weights, indices)` becomes a take from `x @ weights`, so that no weights are copied.

    Two forms: columns of a matrix (`take(..., axis=1)`), and a matrix for each batch (`take(..., axis=0)` of a table of
    matrices, x of shape (batches, rows, columns)), as serving many adapters at once needs. It pays where fewer weights
    are in the table than are taken from it. The last digits of floats may change.

    Example:
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> x, weights, indices = b.input("x", (1, 8)), b.input("w", (8, 16)), b.input("i", (64,), "int64")
        >>> function = b.function(b.op("matmul", x, b.op("take", weights, indices, axis=1)))
        >>> module = ReorderTakeAfterMatmul()(IRModule({"main": function}))
        >>> [binding.value.op_name for binding in module["main"].bindings]
        ['matmul', 'take']
    """

    name = "reorder_take_after_matmul"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _REORDER(function)


def _take_later(match: Match, x: Expr, weights: Expr, indices: Expr) -> Expr | None:
    if leaking_intermediates(match) or indices.tensor_type.rank != 1:
        return None
    axis, rank = match.call_of("taken").attrs["axis"], weights.tensor_type.rank
    if rank >= 2 and axis == rank - 1:
        return op.take(op.matmul(x, weights), indices, axis=match.root.tensor_type.rank - 1)
    is_batched = axis == 0 and rank == 3 and x.tensor_type.rank == 3
    if is_batched and x.tensor_type.shape[0] == indices.tensor_type.shape[0]:
        return _take_by_batch(x, weights, indices)
    return None


def _take_by_batch(x: Expr, weights: Expr, indices: Expr) -> Expr:
    """Return all products of each batch, of shape (batches, tables, rows, columns), and of these the batch's own."""
    batches, rows, inner = x.tensor_type.shape
    tables, _, columns = weights.tensor_type.shape
    side_by_side = op.reshape(op.permute_dims(weights, axes=(1, 0, 2)), shape=(inner, tables * columns))
    products = op.reshape(op.matmul(x, side_by_side), shape=(batches, rows, tables, columns))
    by_table = op.permute_dims(products, axes=(0, 2, 1, 3))
    return op.gather_nd(by_table, op.reshape(indices, shape=(batches, 1)), batch_dims=1)


_REORDER = rewriter_of(
    lambda x, weights, indices: op.matmul(x, op.take(weights, indices).capture("taken")), _take_later
)
