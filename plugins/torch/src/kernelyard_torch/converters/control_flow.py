"""torch.cond and while_loop: their graphs become functions of the module, which `if` and `while` call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from kernelyard.plugins.api import Expr, Function, TensorType, TupleType, Type
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

if TYPE_CHECKING:
    from kernelyard_torch.importer import GraphImporter


@converter("cond")
def cond(node: Node, condition: Any, then: GraphModule, otherwise: GraphModule, operands: Sequence[Any]) -> list[Expr]:
    tensors = _tensors(operands)
    names = []
    for kind, graph in (("then", then), ("else", otherwise)):
        inner = _graph(node, graph, operands)
        names.append(_add(node, kind, inner.function(_results(node, inner))))
    flag = node.reshape(node.cast(node.expr(condition, "bool"), "bool"), ())
    types = [_require(node, type_) for type_ in node.results]
    return _fields(node, node.builder.if_(flag, names[0], names[1], tensors, _as_one(types)), len(types))


@converter("while_loop")
def while_loop(
    node: Node, condition: GraphModule, body: GraphModule, carried: Sequence[Any], additional: Sequence[Any]
) -> list[Expr]:
    if not all(isinstance(value, Expr) for value in carried):
        node.reject("a loop-carried value is a Python number: make it a tensor")
    operands = [*carried, *additional]
    tensors = _tensors(operands)
    test = _graph(node, condition, operands)
    (holds,) = _results(node, test)
    step = _graph(node, body, operands)
    after = [*_results(node, step), *step.builder.params[len(carried) :]]
    names = [
        _add(node, "condition", test.function([Node(node.fx_node, test).reshape(holds, ())])),
        _add(node, "body", step.function(after)),
    ]
    types = [parameter.type for parameter in step.builder.params]
    result = node.builder.while_(names[0], names[1], tensors, _as_one(types))
    return _fields(node, result, len(types))[: len(carried)]


def _tensors(operands: Sequence[Any]) -> list[Expr]:
    """Return the operands without sizes, which functions share with their callers."""
    return [operand for operand in operands if isinstance(operand, Expr)]


def _graph(node: Node, module: GraphModule, operands: Sequence[Any]) -> GraphImporter:
    """Return a graph read as a function of the tensors among the operands."""
    inner = node.importer.create_nested(module)
    for placeholder, operand in zip(inner.placeholders, operands, strict=True):
        if isinstance(operand, Expr):
            type_ = node.importer.shared.type_of(placeholder.meta["val"])
            inner.feed(placeholder, inner.builder.parameter(type_, placeholder.name))
    inner.run()
    return inner


def _results(node: Node, inner: GraphImporter) -> list[Expr]:
    """Import the results of a graph; unsupported nodes have been recorded."""
    results = [inner.tensor(given) for given in inner.outputs()]
    return [node.reject("") if result is None else result for result in results]


def _add(node: Node, kind: str, function: Function) -> str:
    return node.importer.shared.add_private(f"{node.fx_node.name}_{kind}", function)


def _require(node: Node, type_: TensorType | None) -> TensorType:
    return node.reject("its subgraph returns a Python number: make it a tensor") if type_ is None else type_


def _as_one(types: Sequence[Type]) -> Type:
    return types[0] if len(types) == 1 else TupleType(tuple(types))


def _fields(node: Node, result: Expr, count: int) -> list[Expr]:
    return [result] if count == 1 else [node.builder.get(result, index) for index in range(count)]
