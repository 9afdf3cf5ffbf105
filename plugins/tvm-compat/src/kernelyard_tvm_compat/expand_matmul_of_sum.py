"""A product with a sum becomes a sum of products, so that each summand can be multiplied in its own way."""

from __future__ import annotations

from kernelyard.ir import Call, Expr, Function, IRModule
from kernelyard.ir.purity import Purity
from kernelyard.patterns import Match, RewriteRule, op, rewrite, wildcard
from kernelyard.patterns.legality import leaking_intermediates
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard_tvm_compat.constant_values import ConstantValues


class ExpandMatmulOfSum(FunctionPass):
    """`x @ (a + b)` becomes `x @ a + x @ b`; the sum may be transposed.

    That pays where a summand is a product of thin factors (`x @ (w + a @ b)`, an adapter of low rank): run
    AdjustMatmulOrder next. A sum of constants stays, because it is computed once and for all; so does one whose
    summands have other matrices than it has, or that is needed elsewhere too. The last digits of floats may change.

    Example:
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> x, v, w = b.input("x", (2, 3)), b.input("v", (3, 4)), b.input("w", (3, 4))
        >>> module = ExpandMatmulOfSum()(IRModule({"main": b.function(b.op("matmul", x, b.op("add", v, w)))}))
        >>> [binding.value.op_name for binding in module["main"].bindings]
        ['matmul', 'matmul', 'add']
    """

    name = "expand_matmul_of_sum"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        known = ConstantValues(Purity(module))
        total = op.add(wildcard().capture("a"), wildcard().capture("b")).capture("sum")
        operand = total | op.permute_dims(total).capture("permuted")
        pattern = op.matmul(wildcard().capture("x"), operand)
        return rewrite(function, [RewriteRule(pattern, lambda match, _: _expand(match, known))], module)


def _expand(match: Match, known: ConstantValues) -> Expr | None:
    summands, total = (match["a"], match["b"]), match["sum"].tensor_type
    if known.are(match.dataflow, *summands) or leaking_intermediates(match):
        return None
    is_permuted = "permuted" in match
    for summand in summands:
        shape = summand.tensor_type.shape
        # Batches may be broadcast where the axes stay in place; a row that is added to a matrix is no matrix.
        fits = shape == total.shape if is_permuted else shape[-2:] == total.shape[-2:]
        if not fits:
            return None
    left, right = (_product(match, summand) for summand in summands)
    result = op.add(left, right)
    return result if result.type == match.root.type else None


def _product(match: Match, summand: Expr) -> Call:
    if "permuted" in match:
        summand = op.permute_dims(summand, axes=match.call_of("permuted").attrs["axes"])
    return op.matmul(match["x"], summand)
