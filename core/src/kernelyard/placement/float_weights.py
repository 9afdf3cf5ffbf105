"""Offer quantized products twice: as they are stored, then as products of the floats that stored weights stand for."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.ir import Call, Constant, Expr, FunctionMutator, IRModule, Op, Var, with_operands
from kernelyard.patterns.matching.prefilter import find_required_ops
from kernelyard.patterns.registry import FusionPattern
from kernelyard.transform.simplify.fold_constants import FoldWeights

_DEQUANTIZE = frozenset(["dequantize"])


class FloatWeights:
    """The float32 weights of the products that a backend has not taken as products of integers.

    A library packs constant weights, which it cannot where they are dequantized or widened at run time. What it leaves
    is stored in 8 or 16 bits again for those that come after it.
    """

    def __init__(self) -> None:
        self._fold = FoldWeights(all_floats=True)

    def fold(self, module: IRModule) -> IRModule:
        """Return the module with float weights."""
        return self._fold(module)

    def restore(self, module: IRModule) -> IRModule:
        """Return the module with the weights as they were that operators still read."""
        calls: dict[Expr, Call] = {constant: call for call, constant in self._fold.folded.values()}
        if not calls:
            return module
        entries = module.entry_functions().items()
        new = {name: _Restorer(calls).mutate(function) for name, function in entries}
        return module.with_functions({name: f for name, f in new.items() if f is not module[name]})


class _Restorer(FunctionMutator):
    def __init__(self, calls: dict[Expr, Call]) -> None:
        super().__init__()
        self._calls = calls

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Op):
            return value
        if not any(isinstance(arg, Constant) and arg in self._calls for arg in value.args):
            return value
        # Others stay as they are: a loop's are functions, which no variable is bound to.
        args = [self.emit(self._calls[arg], "weight") if arg in self._calls else arg for arg in value.args]
        return with_operands(value, args)


def reads_dequantized(pattern: FusionPattern) -> bool:
    """Return True for a pattern that has no match without a dequantize."""
    return _DEQUANTIZE in find_required_ops(pattern.pattern)


def split(patterns: Sequence[FusionPattern]) -> tuple[list[FusionPattern], list[FusionPattern]]:
    """Return the patterns of dequantized operands, and all others."""
    of_integers = [pattern for pattern in patterns if reads_dequantized(pattern)]
    return of_integers, [pattern for pattern in patterns if pattern not in of_integers]
