"""Snapshot: notices, and undoes, what a plugin's code changes in a module that is not its to change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import is_
from typing import Any

from kernelyard.errors import PluginContractError
from kernelyard.ir import Binding, Expr, Function, IRModule
from kernelyard.ir.expr import operands

_MISSING = object()


class Snapshot:
    """The functions, bindings and expressions of a module as they are now.

    What is in a constant's array is not looked at: the array is read-only.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.ir import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2,))))})
        >>> before = Snapshot(module)
        >>> module.graph_functions()["main"].bindings[0].var.name = "mine"
        >>> before.restore()
        True
        >>> module.graph_functions()["main"].bindings[0].var.name
        'lv'
        >>> before.restore()
        False
    """

    def __init__(self, module: IRModule) -> None:
        nodes: list[Any] = [module, *module.functions.values()]
        self._bindings: list[tuple[Binding, Expr, Expr]] = []
        for function in module.functions.values():
            if isinstance(function, Function):
                self._bindings += [(binding, binding.var, binding.value) for binding in function.bindings]
                nodes += _expressions(function)
        self._states = [(node, dict(vars(node))) for node in dict(zip(map(id, nodes), nodes, strict=True)).values()]

    def violation(self) -> PluginContractError | None:
        """Put everything back as it was; what is to be said of it where something had been changed."""
        return PluginContractError("it changed the module that it was shown") if self.restore() else None

    def restore(self) -> bool:
        """Put everything back as it was; True when something had been changed."""
        is_changed = False
        for node, state in self._states:
            now = vars(node)
            if all(map(is_, now.values(), state.values())) and len(now) >= len(state):
                continue  # nearly every one: attributes stay in the order in which they were set
            for name, value in state.items():  # what is new in it may be a cached property
                if now.get(name, _MISSING) is not value:
                    is_changed = True
                    now[name] = value
        for binding, var, value in self._bindings:
            if binding.var is not var or binding.value is not value:
                is_changed = True
                binding.var, binding.value = var, value  # pyright: ignore[reportAttributeAccessIssue]
        return is_changed


def _expressions(function: Function) -> Iterator[Expr]:
    values = [*(binding.value for binding in function.bindings), function.result]
    bound = (binding.var for binding in function.bindings)
    return chain(function.params, bound, values, chain.from_iterable(map(operands, values)))
