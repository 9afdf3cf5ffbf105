"""Asking the library itself: does oneDNN have more than its reference code for this group?

A group is planned at representative sizes (every symbolic dim is `SYMBOL_SIZE`), with its constants as plain inputs.
oneDNN calls an implementation `ref` when it is a plain loop nest, slower than a kernel of our own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from kernelyard.errors import ShapeError
from kernelyard.plugins.api import Constant, Expr, KernelNode, plain, symbols_of
from kernelyard.runtime.api import JSONGraph, JSONNode, TensorSpec
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.composite import Composite
from kernelyard_dnnl.nodes import node_of
from kernelyard_dnnl.primitive_kind import Refusal
from kernelyard_dnnl.primitives.affine import is_parameter, is_scale
from kernelyard_dnnl.runtime import probe_implementation

SYMBOL_SIZE = 64
REFERENCE = "ref"
SYMBOL = "probe"
# In place of scales, none of them a multiple of another by a power of two; and of zero points, but for those that make
# a relu the begin of the range.
SCALE, SCALE_STEP, ZERO = 0.013, 0.0037, 3
EXACT_ZEROS = (0, -128)


def objection(composite: Composite) -> Refusal | None:
    """Ask oneDNN for an implementation of this group; return a refusal unless it has an optimized one."""
    node = node_of(composite)
    numbers = _numbers_of(node)
    graph = _graph_of(node, composite, numbers)
    symbols = symbols_of(operand.type for call in composite.calls for operand in (*call.args, call))
    text = json.dumps(graph.to_json(), sort_keys=True)
    reason = _objection(text, tuple(sorted(symbols)), tuple(numbers.values()))
    return None if reason is None else Refusal("reference-implementation", reason)


class _Number(NamedTuple):
    """A constant scale or zero point, as far as it decides which primitive is made."""

    digest: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: np.ndarray) -> _Number:
        """Return a constant's numbers."""
        data = array.tobytes()
        digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + data).hexdigest()
        return cls(digest, array.dtype.str, array.shape, data)

    @property
    def array(self) -> np.ndarray:
        """The numbers themselves."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


def _numbers_of(node: KernelNode) -> dict[Expr, _Number]:
    """Return numbers in place of the known scales and zero points of a node, equal where oneDNN answers alike.

    It matters which of them are equal, and which are 0, not how large they are: layers of one shape are one question.
    """
    scales: dict[bytes, float] = {}
    zeros: dict[bytes, int] = {}
    numbers: dict[Expr, _Number] = {}
    for role, operand in node.inputs:
        if not is_parameter(role) or not isinstance(operand, Constant) or not operand.data.size:
            continue
        data = operand.data
        if is_scale(role) and np.isfinite(data).all() and (data > 0).all():
            data = np.full_like(data, scales.setdefault(data.tobytes(), SCALE + SCALE_STEP * len(scales)))
        elif not is_scale(role) and (data == data.flat[0]).all() and data.flat[0] not in EXACT_ZEROS:
            data = np.full_like(data, zeros.setdefault(data.tobytes(), ZERO + len(zeros)))
        numbers[operand] = _Number.of(data)
    return numbers


def _graph_of(node: KernelNode, composite: Composite, numbers: Mapping[Expr, _Number]) -> JSONGraph:
    operands: dict[Expr, int] = {}
    for _, operand in node.inputs:
        operands.setdefault(operand, len(operands))
    specs = {operand: TensorSpec(operand.tensor_type.shape, operand.tensor_type.dtype) for operand in operands}
    inputs = tuple(spec for operand, spec in specs.items() if operand not in numbers)
    nodes: list[JSONNode] = []
    for operand, spec in specs.items():
        known = numbers.get(operand)
        index = sum(node.kind == "input" for node in nodes)
        leaf = JSONNode("input", (spec,), index=index) if known is None else None
        nodes.append(leaf or JSONNode("constant", (spec,), digest=numbers[operand].digest))
    entries = tuple((role, (operands[operand], 0)) for role, operand in node.inputs)
    type_ = composite.calls[-1].tensor_type
    result = TensorSpec(type_.shape, type_.dtype)
    nodes.append(JSONNode("kernel", (result,), node.op, entries, plain(node.attrs, node.op)))
    return JSONGraph(SYMBOL, inputs, tuple(nodes), ((len(nodes) - 1, 0),))


@lru_cache(maxsize=4096)
def _objection(graph_text: str, symbols: tuple[str, ...], numbers: tuple[_Number, ...]) -> str | None:
    graph = JSONGraph.from_json(json.loads(graph_text), "probe")
    constants = {number.digest: number.array for number in numbers}
    try:
        implementations = probe_implementation(graph, dict.fromkeys(symbols, SYMBOL_SIZE), constants)
    except ShapeError:
        return None  # the representative sizes do not fit together: nothing is known, and the sizes at run time may
    except StatusError as error:
        if symbols and error.status == "invalid_arguments" and _may_fit(graph, symbols, constants):
            return None  # as above: unrelated symbols were given one size
        return f"oneDNN has no implementation: {error.message}"
    slow = [f"{label}: {name}" for label, name in implementations if name.partition(":")[0] == REFERENCE]
    return f"oneDNN has only its reference implementation ({', '.join(slow)})" if slow else None


def _may_fit(graph: JSONGraph, symbols: tuple[str, ...], constants: Mapping[str, np.ndarray]) -> bool:
    """Return False where oneDNN refuses the group at all sizes that its symbols may have to take: sizes are not what it
    minds. Those are 1, which broadcasts, and the known sizes beside them but for 0: no symbol is 0 where code runs.
    """
    shapes = [spec.shape for node in graph.nodes for spec in node.outputs]
    known = {1, *(size for shape in shapes for size in shape if isinstance(size, int) and size)}
    return any(_is_taken(graph, dict.fromkeys(symbols, size), constants) for size in sorted(known))


def _is_taken(graph: JSONGraph, values: Mapping[str, int], constants: Mapping[str, np.ndarray]) -> bool:
    """Return False where oneDNN refuses a group at these sizes; sizes that do not fit together are no refusal."""
    with suppress(ShapeError):
        try:
            probe_implementation(graph, values, constants)
        except StatusError:
            return False
    return True
