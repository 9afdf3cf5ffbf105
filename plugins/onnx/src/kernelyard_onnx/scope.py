"""Scope: the values that the names of a model's graph are bound to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from kernelyard_onnx.values import Value


@dataclass
class Scope:
    """Names that nodes may read: of one graph, and of the graphs around it.

    opsets: versions by domain. attributes: those of the call, while the body of a function is converted. continued: how
    many branches around this one contain nodes that follow their `If`.
    """

    opsets: Mapping[str, int]
    parent: Scope | None = None
    values: dict[str, Value] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    attributes: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    depth: int = 0
    continued: int = 0

    def inner(self) -> Scope:
        """Return an empty scope inside this one."""
        return Scope(self.opsets, self, attributes=self.attributes, depth=self.depth + 1, continued=self.continued)

    def find(self, name: str) -> Value | None:
        """Return the value of a name, innermost graph first."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        return None

    def has_failed(self, name: str) -> bool:
        """Return True for the output of a node that could not be converted."""
        return name in self.failed or (self.parent is not None and self.parent.has_failed(name))
