"""Asking the library itself: does oneDNN have more than its reference code for this group?

A group is planned at representative sizes (every symbolic dim is `SYMBOL_SIZE`), with its constants as plain inputs.
oneDNN calls an implementation `ref` when it is a plain loop nest, slower than a kernel of our own.
"""

from __future__ import annotations

import json
from functools import lru_cache

from kernelyard.errors import ShapeError
from kernelyard.plugins.api import Expr, KernelNode, plain, symbols_of
from kernelyard.runtime.api import JSONGraph, JSONNode, TensorSpec
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.composite import Composite
from kernelyard_dnnl.nodes import node_of
from kernelyard_dnnl.primitive_kind import Refusal
from kernelyard_dnnl.runtime import probe_implementation

SYMBOL_SIZE = 64
REFERENCE = "ref"
SYMBOL = "probe"


def objection(composite: Composite) -> Refusal | None:
    """Ask oneDNN for an implementation of this group; return a refusal unless it has an optimized one."""
    graph = _graph_of(node_of(composite), composite)
    symbols = symbols_of(operand.type for call in composite.calls for operand in (*call.args, call))
    reason = _objection(json.dumps(graph.to_json(), sort_keys=True), tuple(sorted(symbols)))
    return None if reason is None else Refusal("reference-implementation", reason)


def _graph_of(node: KernelNode, composite: Composite) -> JSONGraph:
    operands: dict[Expr, int] = {}
    for _, operand in node.inputs:
        operands.setdefault(operand, len(operands))
    inputs = tuple(TensorSpec(operand.tensor_type.shape, operand.tensor_type.dtype) for operand in operands)
    nodes = [JSONNode("input", (spec,), index=index) for index, spec in enumerate(inputs)]
    entries = tuple((role, (operands[operand], 0)) for role, operand in node.inputs)
    type_ = composite.calls[-1].tensor_type
    result = TensorSpec(type_.shape, type_.dtype)
    nodes.append(JSONNode("kernel", (result,), node.op, entries, plain(node.attrs, node.op)))
    return JSONGraph(SYMBOL, inputs, tuple(nodes), ((len(nodes) - 1, 0),))


@lru_cache(maxsize=4096)
def _objection(graph_text: str, symbols: tuple[str, ...]) -> str | None:
    graph = JSONGraph.from_json(json.loads(graph_text), "probe")
    try:
        implementations = probe_implementation(graph, dict.fromkeys(symbols, SYMBOL_SIZE), {})
    except ShapeError:
        return None  # the representative sizes do not fit together: nothing is known, and the sizes at run time may
    except StatusError as error:
        if symbols and error.status == "invalid_arguments":
            return None  # as above: unrelated symbols were given one size
        return f"oneDNN has no implementation: {error.message}"
    slow = [f"{label}: {name}" for label, name in implementations if name.partition(":")[0] == REFERENCE]
    return f"oneDNN has only its reference implementation ({', '.join(slow)})" if slow else None
