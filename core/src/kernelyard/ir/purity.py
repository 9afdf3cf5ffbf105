"""Test for purity: pure values have no effect but their result, and may be removed, repeated, merged or moved."""

from __future__ import annotations

from collections.abc import Iterator

from kernelyard.ir.expr import BaseFunction, Call, Expr, Function, GlobalVar
from kernelyard.ir.module import IRModule


class Purity:
    """Answers for the values of one module; what functions do is worked out once for each."""

    def __init__(self, module: IRModule) -> None:
        self._module = module
        self._functions: dict[str, bool] = {}

    def is_pure(self, value: Expr) -> bool:
        """Return True when evaluating the value has no effect."""
        if not isinstance(value, Call):
            return True
        if isinstance(value.op, GlobalVar):
            return self._is_pure_function(value.op.name)
        return value.op.pure and all(map(self._is_pure_function, self._graph_functions_given_to(value)))

    def _graph_functions_given_to(self, call: Call) -> Iterator[str]:
        """Return the branches and loop bodies that a call is given."""
        for name in (arg.name for arg in call.args if isinstance(arg, GlobalVar)):
            if isinstance(self._module.functions.get(name), Function):
                yield name

    def _is_pure_function(self, name: str) -> bool:
        if name not in self._functions:
            # A function that calls itself has an effect: it may not end.
            self._functions[name] = False
            function: BaseFunction | None = self._module.functions.get(name)
            self._functions[name] = isinstance(function, Function) and all(
                self.is_pure(binding.value) for binding in function.bindings
            )
        return self._functions[name]
