"""Greatest common divisors."""

from __future__ import annotations

from kernelyard.plugins.api import Expr, TupleType
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


@converter("aten.gcd.default")
def gcd(node: Node, a: Expr, b: Expr) -> Expr:
    """By Euclid's algorithm, on all elements at once while one of them leaves a remainder."""
    sizes = [node.broadcast_to(_absolute(node, node.cast(x, node.result.dtype)), node.result.shape) for x in (a, b)]
    type_ = TupleType((node.result, node.result))
    loop = node.builder.while_(_add_condition(node), _add_step(node), sizes, type_)
    return node.builder.get(loop, 0)


def _absolute(node: Node, x: Expr) -> Expr:
    return x if node.dtype(x) in UNSIGNED else node.op("abs", x)


def _add_condition(node: Node) -> str:
    inner, _, b = _begin(node)
    return _finish(node, inner, "condition", inner.op("any", inner.op("not_equal", inner.flat(b), 0), axes=(0,)))


def _add_step(node: Node) -> str:
    inner, a, b = _begin(node)
    is_done = inner.op("equal", b, 0)
    one = inner.full(1, (), node.result.dtype)
    rest = inner.op("mod", a, inner.op("where", is_done, one, b))
    rest = inner.op("where", is_done, inner.full(0, (), node.result.dtype), rest)
    return _finish(node, inner, "step", inner.op("where", is_done, a, b), rest)


def _begin(node: Node) -> tuple[Node, Expr, Expr]:
    """Return what writes a function of the two numbers, and these."""
    inner = Node(node.fx_node, node.importer.create_nested(node.importer.module))
    a, b = (inner.builder.parameter(node.result, name) for name in ("a", "b"))
    return inner, a, b


def _finish(node: Node, inner: Node, kind: str, *results: Expr) -> str:
    return node.importer.shared.add_private(f"{node.fx_node.name}_{kind}", inner.importer.function(results))
