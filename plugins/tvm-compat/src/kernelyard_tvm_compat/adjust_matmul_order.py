"""Chains of matrix products are bracketed so that they take the fewest operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim, Symbol
from kernelyard.ir import Call, Expr, Function, IRModule
from kernelyard.ir.op import Op
from kernelyard.ir.purity import Purity
from kernelyard.patterns import Match, Pattern, RewriteRule, op, rewrite, wildcard
from kernelyard.patterns.legality import leaking_intermediates
from kernelyard.patterns.templates import swaps_last_two
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard_tvm_compat.constant_values import ConstantValues


class AdjustMatmulOrder(FunctionPass):
    """`(a @ b) @ c` becomes `a @ (b @ c)`, or the other way round, where that takes fewer operations.

    Two constants are brought together first, because their product is computed once and for all. The product inside
    may be transposed, and costs nothing more where it is needed elsewhere too. What is not fewer for every size stays;
    sizes: what to take for symbols, by name. The last digits of floats may change.

    Example:
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> a, c, x = b.input("a", (64, 2)), b.input("c", (2, 64)), b.input("x", (64, 1))
        >>> module = AdjustMatmulOrder()(IRModule({"main": b.function(b.op("matmul", b.op("matmul", a, c), x))}))
        >>> module["main"].bindings[0].value.args == (c, x)
        True
    """

    name = "adjust_matmul_order"

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self._sizes: Mapping[str, Dim] = dict(sizes or {})

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        known = ConstantValues(Purity(module))
        rules = [RewriteRule(pattern, lambda match, _: self._better(match, known)) for pattern in _patterns()]
        return rewrite(function, rules, module)

    def _better(self, match: Match, known: ConstantValues) -> Expr | None:
        """Return the other order, where it is better."""
        chain = _chain(match)
        if chain is None:
            return None
        left, right = op.matmul(op.matmul(chain.a, chain.b), chain.c), op.matmul(chain.a, op.matmul(chain.b, chain.c))
        now, other = (left, right) if chain.is_left_first else (right, left)
        if other.type != match.root.type:
            return None
        a, b, c = (known.are(match.dataflow, factor) for factor in (chain.a, chain.b, chain.c))
        if b and (a or c):
            is_better = a != c and c == chain.is_left_first
        else:
            spent = 0 if leaking_intermediates(match) else _operations(_inner(now))
            is_better = self._is_less(_operations(other) + _operations(_inner(other)), _operations(now) + spent)
        return other if is_better else None

    def _is_less(self, left: Dim, right: Dim) -> bool:
        return _is_positive(dims.substitute(right - left, self._sizes))


@dataclass(frozen=True)
class _Chain:
    """Three factors; the products of the first two, or of the last two, are there."""

    a: Expr
    b: Expr
    c: Expr
    is_left_first: bool


def _patterns() -> list[Pattern]:
    product = op.matmul(wildcard().capture("first"), wildcard().capture("second"))
    inner = product | op.permute_dims(product, axes=swaps_last_two).capture("transposed")
    return [op.matmul(inner, wildcard().capture("last")), op.matmul(wildcard().capture("front"), inner)]


def _chain(match: Match) -> _Chain | None:
    first, second = match["first"], match["second"]
    if "transposed" in match:  # the transpose of a product is the product of the transposes, the other way round
        if min(first.tensor_type.rank, second.tensor_type.rank) < 2:
            return None
        first, second = _transpose(second), _transpose(first)
    is_left_first = "last" in match
    outer = match["last" if is_left_first else "front"]
    chain = _Chain(first, second, outer, True) if is_left_first else _Chain(outer, first, second, False)
    ranks = [factor.tensor_type.rank for factor in (chain.a, chain.b, chain.c)]
    # A vector at an end takes an axis from the product, so that the axes of batches would be taken for rows.
    return chain if min(ranks) > 1 or (ranks[1] == 2 and max(ranks) == 2) else None


def _transpose(x: Expr) -> Call:
    rank = x.tensor_type.rank
    return op.permute_dims(x, axes=(*range(rank - 2), rank - 1, rank - 2))


def _inner(product: Call) -> Call:
    return next(arg for arg in product.args if isinstance(arg, Call) and arg.op_name == "matmul")


def _operations(product: Call) -> Dim:
    assert isinstance(product.op, Op)
    assert product.op.flops is not None
    return product.op.flops([arg.tensor_type for arg in product.args], product.type, product.attrs)


def _is_positive(dim: Dim) -> bool:
    """Return True when a dim is more than 0 whatever its symbols are: no coefficient is negative once they count from
    0.
    """
    shifted = dims.substitute(dim, {name: dims.symbol(name) + 1 for name in dims.symbols_of(dim)})
    if isinstance(shifted, int):
        return shifted > 0
    if any(not isinstance(atom, Symbol) for monomial, _ in shifted.terms for atom in monomial):
        return False
    return all(c > 0 for _, c in shifted.terms) and any(not monomial for monomial, _ in shifted.terms)
