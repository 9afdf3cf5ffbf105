"""Mutator: goes through a module and replaces parts of it, such as linear layers by ones with other weights."""

from __future__ import annotations

from kernelyard.nn.effect import Effect
from kernelyard.nn.module import Module
from kernelyard.nn.tensor import Parameter


class Mutator:
    """Override what you replace: a `visit_*` method gets a node and its path, and answers what is to be there.

    A node that is in several places is visited once, and replaced in all of them.

    Example:
        >>> from kernelyard import nn
        >>> class Tanh(nn.Module):
        ...     def forward(self, x):
        ...         return nn.op.tanh(x)
        >>> class ToTanh(nn.Mutator):
        ...     def visit_module(self, name, node):
        ...         return Tanh() if isinstance(node, nn.ReLU) else super().visit_module(name, node)
        >>> model = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
        >>> [type(module).__name__ for module in ToTanh().visit("", model)]
        ['Linear', 'Tanh']
    """

    def __init__(self) -> None:
        self._visited: dict[Module | Parameter, Module | Parameter] = {}

    def visit(self, name: str, node: Module | Parameter) -> Module | Parameter:
        """Return the replacement of a node; `name` is its path, "" for the model itself."""
        if node not in self._visited:
            self._visited[node] = node
            if isinstance(node, Parameter):
                self._visited[node] = self.visit_param(name, node)
            elif isinstance(node, Effect):
                self._visited[node] = self.visit_effect(name, node)
            else:
                self._visited[node] = self.visit_module(name, node)
        return self._visited[node]

    def visit_module(self, name: str, node: Module) -> Module:
        """Visit the module's children, and replace them in it."""
        for key, child in list(node.children()):
            new = self.visit(f"{name}.{key}" if name else key, child)
            if new is not child:
                node.replace_child(key, new)
        return node

    def visit_param(self, name: str, node: Parameter) -> Parameter:
        """Return the parameter itself."""
        return node

    def visit_effect(self, name: str, node: Effect) -> Module:
        """Return the effect itself."""
        return node
