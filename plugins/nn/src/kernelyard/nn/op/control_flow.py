"""Branches: which of two functions is run is decided when the model runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from kernelyard.errors import FrontendError
from kernelyard.nn import scope
from kernelyard.nn.op.reduction import fields
from kernelyard.nn.scope import Scope
from kernelyard.nn.subroutine import InnerScope, check_closed, inner_scope
from kernelyard.nn.tensor import Tensor
from kernelyard.plugins.api import PRIVATE, Expr, Function, FunctionBuilder

__all__ = ["cond"]

Branch = Callable[..., "Tensor | tuple[Tensor, ...]"]


def cond(condition: Tensor, then: Branch, otherwise: Branch, operands: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Return `then(*operands)` where a condition () of bool holds, else `otherwise(*operands)`, as torch.cond does.

    Only that function is run. Both take their tensors as operands, and return tensors of the same types; they may read
    parameters, but not replace the state of an effect. Raises: FrontendError.

    Example:
        nn.op.cond(nn.op.max(x) > 0, lambda x: self.expert(x), lambda x: x, [x])
    """
    outer = scope.current()
    if condition.shape or condition.dtype != "bool":
        found = f"shape {condition.shape}, dtype {condition.dtype}"
        raise FrontendError("the condition of a branch must be a bool scalar", found=found)
    first = _trace(outer, then, operands, ())
    second = _trace(outer, otherwise, operands, first.captured)
    for expr in second.captured[len(first.captured) :]:
        first.builder.parameter(expr.type, "parameter")
    bodies = [each.function(outer.origin) for each in (first, second)]
    type_ = bodies[0].result_type
    if bodies[1].result_type != type_:
        found = f"{type_!r} and {bodies[1].result_type!r}"
        raise FrontendError("the two branches return other types", where=outer.origin or None, found=found)
    names = [outer.subroutines.add(body, name) for body, name in zip(bodies, ("then", "otherwise"), strict=True)]
    args = [*(each.expr for each in operands), *second.captured]
    var = outer.builder.if_(condition.expr, names[0], names[1], args, type_)
    return fields(var) if len(first.results) > 1 else Tensor(var)


class _BranchScope(InnerScope):
    """The scope of a branch: parameters that become constants are constants in it, which kernels are made for."""

    def variable(self, parameter: Hashable) -> Expr:
        found = self.outer.constants.get(parameter)
        return super().variable(parameter) if found is None else found


@dataclass
class _Traced:
    """A traced branch. captured: parameters of the model that it reads, or that the other branch does."""

    builder: FunctionBuilder
    results: Sequence[Expr]
    captured: Sequence[Expr]

    def function(self, origin: str) -> Function:
        body = self.builder.function(*self.results, attrs={PRIVATE: True})
        check_closed(body, origin, "a branch", "cond")
        return body


def _trace(outer: Scope, branch: Branch, operands: Sequence[Tensor], captured: Sequence[Expr]) -> _Traced:
    """Trace a branch, whose parameters are the operands, what the other branch has captured, and what it captures."""
    inner = inner_scope(_BranchScope, outer)
    own = [Tensor(inner.builder.parameter(each.type, "x")) for each in operands]
    for expr in captured:
        inner.builder.parameter(expr.type, "parameter")
    with scope.tracing(inner):
        result = branch(*own)
    results = result if isinstance(result, tuple) else (result,)
    if not results or not all(isinstance(each, Tensor) for each in results):
        raise FrontendError("a branch must return tensors", where=outer.origin or None, found=repr(result))
    if inner.replaced():
        raise FrontendError("a branch replaces the state of an effect", where=outer.origin or None)
    return _Traced(inner.builder, [each.expr for each in results], [*captured, *inner.arguments])
