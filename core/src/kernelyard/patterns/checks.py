"""Checks shared by GEMM libraries: read a matched matmul as one strided-batched GEMM, or decline it.

Captures are those of the templates: "root" is the product, "bias" is what is added to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim, Shape
from kernelyard.patterns.matching.match_result import Match
from kernelyard.patterns.registry import Decline


@dataclass(frozen=True)
class Gemm:
    """`batch` products (rows, inner) @ (inner, columns), one after another in memory; sizes may be symbolic.

    shares_lhs: one left matrix serves every batch (its stride is 0).
    """

    batch: Dim
    rows: Dim
    columns: Dim
    inner: Dim
    shares_lhs: bool = False


def gemm_of(match: Match) -> Gemm | Decline:
    """Return the product captured as "root" as one call of a GEMM with strided batches, or why it is none.

    A right side without batches makes one product of all rows. Sizes are compared by proof: two symbols that may turn
    out to be equal are declined.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.dims import symbol
        >>> from kernelyard.ir import FunctionBuilder
        >>> from kernelyard.patterns import match
        >>> from kernelyard.patterns.templates import matmul
        >>> b = FunctionBuilder()
        >>> y = b.op("matmul", b.input("x", (symbol("n"), 4, 8)), b.input("w", (8, 5)))
        >>> gemm_of(match(matmul(), y, b.function(y)))
        Gemm(batch=1, rows=n * 4, columns=5, inner=8, shares_lhs=False)
    """
    left, right = (operand.tensor_type.shape for operand in match.call_of("root").args)
    return gemm_of_shapes(left, right)


def gemm_of_shapes(left: Shape, right: Shape) -> Gemm | Decline:
    """Return the result of `gemm_of` for operands of these shapes."""
    if len(left) < 2 or len(right) < 2:
        return Decline("rank", f"the operands are {_text(left)} and {_text(right)}: a vector is no matrix")
    rows, inner, columns = left[-2], left[-1], right[-1]
    if _is_one(right[:-2]):
        return Gemm(1, dims.product(left[:-1]), columns, inner)
    if _is_one(left[:-2]):
        return Gemm(dims.product(right[:-2]), rows, columns, inner, shares_lhs=True)
    if _drop_leading_ones(left[:-2]) != _drop_leading_ones(right[:-2]):
        return Decline("batch", f"the batches {_text(left[:-2])} and {_text(right[:-2])} are not known to be the same")
    return Gemm(dims.product(left[:-2]), rows, columns, inner)


def check_bias(match: Match) -> Decline | None:
    """Return None when "bias" has one number for each column of "root", as the epilogue of a GEMM adds it; else why
    not.

    What also broadcasts in another way (one number for all, one for each row, more rows than the product has) is
    declined. None for a match without a "bias".
    """
    added, product = match.get("bias"), match["root"].tensor_type.shape
    if added is None:
        return None
    bias = added.tensor_type.shape
    if 1 <= len(bias) <= len(product) and bias[-1] == product[-1] and _is_one(bias[:-1]):
        return None
    return Decline("bias", f"what is added is {_text(bias)}, not one number for each of {product[-1]} columns")


def _is_one(batch: Shape) -> bool:
    return all(size == 1 for size in batch)


def _drop_leading_ones(batch: Shape) -> Shape:
    """Drop leading ones, which broadcast to nothing; other ones have a position of their own and stay."""
    first = next((i for i, size in enumerate(batch) if size != 1), len(batch))
    return batch[first:]


def _text(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
