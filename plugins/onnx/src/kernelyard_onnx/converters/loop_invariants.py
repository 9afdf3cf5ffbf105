"""Products in the body of a loop that are the same in all iterations: computed once, before the loop.

A decoder with attention multiplies the encoder's result with weights in each of its steps, as models write it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.plugins.api import (
    Binding,
    Call,
    Expr,
    Op,
    attribute_symbols,
    introduces_symbols,
    operands,
    symbols_of,
)
from kernelyard_onnx.graph_builder import GraphBuilder
from kernelyard_onnx.outlined_graph import OutlinedGraph

_PRODUCTS = ("matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d")


def hoist_invariants(graph: OutlinedGraph, around: GraphBuilder) -> None:
    """Move such products, and what they alone are computed from, from the body of a loop to the function around it."""
    bindings = graph.builder.live_bindings(graph.results)
    moved = _products(bindings, _varying(graph, bindings))
    around.bindings += [binding for binding in bindings if binding.var in moved]
    graph.builder.bindings[:] = [binding for binding in graph.builder.bindings if binding.var not in moved]


def _varying(graph: OutlinedGraph, bindings: Sequence[Binding]) -> set[Expr]:
    """Return what may differ between iterations, or has to stay in the body."""
    inner = symbols_of(param.type for param in graph.params) - symbols_of(var.type for var in graph.list_captured())
    inner |= symbols_of(binding.var.type for binding in bindings if introduces_symbols(binding.value))
    varying: set[Expr] = set(graph.params)
    for binding in bindings:
        if not _is_movable(binding, inner) or not varying.isdisjoint(operands(binding.value)):
            varying.add(binding.var)
    return varying


def _products(bindings: Sequence[Binding], varying: set[Expr]) -> set[Expr]:
    """Return products that do not vary, and what they are computed from."""
    found: set[Expr] = set()
    for binding in reversed(bindings):
        is_product = isinstance(binding.value, Call) and binding.value.op_name in _PRODUCTS
        if binding.var not in varying and (is_product or binding.var in found):
            found |= {binding.var, *operands(binding.value)}
    return found


def _is_movable(binding: Binding, inner: frozenset[str]) -> bool:
    """Return True for a call of a pure operator whose sizes do not depend on what only the body knows."""
    value = binding.value
    if not isinstance(value, Call) or not isinstance(value.op, Op) or introduces_symbols(value):
        return False
    sizes = symbols_of([binding.var.type]) | attribute_symbols(value)
    return value.op.pure and not value.op.opaque_type and sizes.isdisjoint(inner)
