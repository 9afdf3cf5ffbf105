"""Find the constant values of a function: constants, and values computed from constants only."""

from __future__ import annotations

from kernelyard.ir import Call, Constant, Expr, Var, operands
from kernelyard.ir.purity import Purity
from kernelyard.patterns import Dataflow


class ConstantValues:
    """Answers for one function after another, as a rewrite goes on."""

    def __init__(self, purity: Purity) -> None:
        self._purity = purity
        self._dataflow: Dataflow | None = None
        self._vars: set[Var] = set()

    def are(self, dataflow: Dataflow, *values: Expr) -> bool:
        """Return True when all `values` are known; each is an operand in `dataflow`, or a new call of such."""
        if dataflow is not self._dataflow:
            self._dataflow, self._vars = dataflow, set()
            for binding in dataflow.bindings:
                if self._purity.is_pure(binding.value) and all(map(self._is_known, operands(binding.value))):
                    self._vars.add(binding.var)
        return all(map(self._is_known, values))

    def _is_known(self, value: Expr) -> bool:
        if isinstance(value, Call):
            return all(map(self._is_known, value.args))
        return isinstance(value, Constant) or value in self._vars
