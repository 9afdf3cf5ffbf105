"""OutlinedGraph: a graph attribute whose nodes became a function body, and what that reads from around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelyard.plugins.api import PRIVATE, Binding, Expr, Function, Tuple, Var, operands, with_operands
from kernelyard_onnx.graph_builder import GraphBuilder


@dataclass(frozen=True)
class OutlinedGraph:
    """Bindings that read `params`, one another, and values of the function around; and the results."""

    builder: GraphBuilder
    params: tuple[Var, ...]
    results: Sequence[Expr]

    def list_captured(self) -> list[Var]:
        """Return the values of the function around that are read here, in order."""
        bindings = self.builder.live_bindings(self.results)
        own = {*self.params, *(binding.var for binding in bindings)}
        read = [operand for binding in bindings for operand in operands(binding.value)]
        return list(dict.fromkeys(o for o in (*read, *self.results) if isinstance(o, Var) and o not in own))

    def function(self, captured: Sequence[Var], results: Sequence[Expr] | None = None) -> Function:
        """Build the private function of `params` and `captured` that gives `results`, by default the graph's."""
        wanted = list(self.results if results is None else results)
        inner: dict[Expr, Var] = {var: Var(var.name, var.type, var.origin) for var in captured}
        bindings = [Binding(b.var, _rename(b.value, inner)) for b in self.builder.live_bindings(wanted)]
        values = [inner.get(value, value) for value in wanted]
        result = values[0] if len(values) == 1 else Tuple(values)
        return Function([*self.params, *inner.values()], bindings, result, {PRIVATE: True})


def _rename(value: Expr, inner: Mapping[Expr, Var]) -> Expr:
    old = operands(value)
    new = [inner.get(operand, operand) for operand in old]
    return value if all(a is b for a, b in zip(old, new, strict=True)) else with_operands(value, new)
