"""Products in the body of a Scan that need no state: one product of all steps, before the loop.

A cell multiplies what it is given in a step with weights. Step by step the weights are read each time, which is what
such a product takes; all steps together are the rows of one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx

from kernelyard.plugins.api import Expr
from kernelyard_onnx.node import Node

if TYPE_CHECKING:
    Source = tuple[Expr, int, int]

_STANDARD = ("", "ai.onnx")
_MATRIX = 2


def hoist_products(
    node: Node, body: onnx.GraphProto, sources: Sequence[Source]
) -> tuple[onnx.GraphProto, Sequence[Source]]:
    """Take products of what is scanned with fixed matrices out of a body: they are sources beside the others then.

    sources: what is scanned, each with its axis and whether it is read backwards.
    """
    states = len(body.input) - len(sources)
    scanned = {parameter.name: source for parameter, source in zip(body.input[states:], sources, strict=True)}
    products = [each for each in body.node if _is_product(each, scanned) and _is_matrix(node, body, each.input[1])]
    if not products:
        return body, sources
    moved = {each.output[0] for each in products}
    rest = onnx.GraphProto()
    rest.CopyFrom(body)
    del rest.node[:]
    rest.node.extend(each for each in body.node if not moved.intersection(each.output))
    rest.input.extend(onnx.ValueInfoProto(name=each.output[0]) for each in products)
    return rest, [*sources, *(_product(node, body, each, scanned[each.input[0]]) for each in products)]


def _is_product(each: onnx.NodeProto, scanned: dict[str, Source]) -> bool:
    return each.op_type == "MatMul" and each.domain in _STANDARD and each.input[0] in scanned


def _is_matrix(node: Node, body: onnx.GraphProto, name: str) -> bool:
    """Return True for a matrix that is the same in all steps."""
    for initializer in body.initializer:
        if initializer.name == name:
            return len(initializer.dims) == _MATRIX
    inside = {output for each in body.node for output in each.output} | {parameter.name for parameter in body.input}
    value = None if name in inside else node.scope.find(name)
    return isinstance(value, Expr) and node.rank(value) == _MATRIX


def _product(node: Node, body: onnx.GraphProto, product: onnx.NodeProto, source: Source) -> Source:
    """Return the product of all steps, with the steps along the first axis."""
    x, axis, backwards = source
    steps_first = node.permute(x, [axis, *(other for other in range(node.rank(x)) if other != axis)])
    graph = onnx.GraphProto(
        node=[product],
        input=[onnx.ValueInfoProto(name=product.input[0])],
        output=[onnx.ValueInfoProto(name=product.output[0])],
        initializer=[each for each in body.initializer if each.name == product.input[1]],
    )
    (total,) = node.importer.run_subgraph(graph, node.scope, [steps_first])
    return (total, 0, backwards) if isinstance(total, Expr) else node.reject("a product of its body is not a tensor")
