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
from kernelyard.plugins.api import Constant, Expr, KernelNode, TensorType, plain, symbols_of
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
    symbols = symbols_of(operand.type for call in composite.calls for operand in (*call.args, call))
    reason = _objection(_question_of(composite), tuple(sorted(symbols)))
    return None if reason is None else Refusal("reference-implementation", reason)


class _Number(NamedTuple):
    """A constant scale or zero point, as far as it decides which primitive is made; data has one number where all are
    equal."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def array(self) -> np.ndarray:
        """The numbers themselves."""
        numbers = np.frombuffer(self.data, self.dtype)
        return np.full(self.shape, numbers[0]) if numbers.size == 1 else numbers.reshape(self.shape)

    @property
    def digest(self) -> str:
        """Return the digest that stands for the numbers in a graph."""
        return hashlib.sha256(repr(tuple(self)).encode()).hexdigest()


class _Question(NamedTuple):
    """A group as oneDNN is asked for it: equal for layers of one shape.

    attrs: the node's attributes as JSON text. operands: by place, with their numbers where these are known. inputs:
    roles, and the places of what they read.
    """

    op: str
    attrs: str
    operands: tuple[tuple[TensorType, _Number | None], ...]
    inputs: tuple[tuple[str, int], ...]
    result: TensorType

    def graph(self) -> JSONGraph:
        """Return a graph of the group, known numbers as constants."""
        inputs: list[TensorSpec] = []
        nodes: list[JSONNode] = []
        for type_, number in self.operands:
            spec = _spec(type_)
            if number is None:
                nodes.append(JSONNode("input", (spec,), index=len(inputs)))
                inputs.append(spec)
            else:
                nodes.append(JSONNode("constant", (spec,), digest=number.digest))
        entries = tuple((role, (place, 0)) for role, place in self.inputs)
        nodes.append(JSONNode("kernel", (_spec(self.result),), self.op, entries, json.loads(self.attrs)))
        return JSONGraph(SYMBOL, tuple(inputs), tuple(nodes), ((len(nodes) - 1, 0),))

    def constants(self) -> dict[str, np.ndarray]:
        """Return the known numbers by digest."""
        return {number.digest: number.array for _, number in self.operands if number is not None}


def _spec(type_: TensorType) -> TensorSpec:
    return TensorSpec(type_.shape, type_.dtype)


def _question_of(composite: Composite) -> _Question:
    node = node_of(composite)
    numbers = _numbers_of(node)
    places: dict[Expr, int] = {}
    for _, operand in node.inputs:
        places.setdefault(operand, len(places))
    return _Question(
        node.op,
        json.dumps(plain(node.attrs, node.op), sort_keys=True),
        tuple((operand.tensor_type, numbers.get(operand)) for operand in places),
        tuple((role, places[operand]) for role, operand in node.inputs),
        composite.calls[-1].tensor_type,
    )


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
        data, known = operand.data, operand.data.tobytes()
        if is_scale(role) and data.min() > 0 and np.isfinite(data.max()):
            number = scales.setdefault(known, SCALE + SCALE_STEP * len(scales))
            known = np.array(number, data.dtype).tobytes()
        elif not is_scale(role) and (data == data.flat[0]).all() and data.flat[0] not in EXACT_ZEROS:
            number = zeros.setdefault(known, ZERO + len(zeros))
            known = np.array(number, data.dtype).tobytes()
        numbers[operand] = _Number(data.dtype.str, data.shape, known)
    return numbers


@lru_cache(maxsize=4096)
def _objection(question: _Question, symbols: tuple[str, ...]) -> str | None:
    return _answer(question.graph(), symbols, question.constants())


def _implementations(
    graph: JSONGraph, values: Mapping[str, int], constants: Mapping[str, np.ndarray]
) -> list[tuple[str, str]]:
    """Return the names of implementations at some sizes. Raises: ShapeError where one of them is below 0, as 7 - n may
    be; StatusError."""
    for spec in (spec for node in graph.nodes for spec in node.outputs):
        if min(spec.evaluate(values), default=0) < 0:
            raise ShapeError("a size is below 0", found=spec.evaluate(values))
    return probe_implementation(graph, values, constants)


def _answer(graph: JSONGraph, symbols: tuple[str, ...], constants: Mapping[str, np.ndarray]) -> str | None:
    """Return why oneDNN's implementation of a graph is not to be used; None where there is a quick one."""
    try:
        implementations = _implementations(graph, dict.fromkeys(symbols, SYMBOL_SIZE), constants)
    except ShapeError:
        return _lack_at_other_sizes(graph, symbols, constants)
    except StatusError as error:
        if symbols and error.status == "invalid_arguments" and _can_fit(graph, symbols, constants):
            return None  # as above: unrelated symbols were given one size
        return f"oneDNN has no implementation: {error.message}"
    slow = [f"{label}: {name}" for label, name in implementations if name.partition(":")[0] == REFERENCE]
    return f"oneDNN has only its reference implementation ({', '.join(slow)})" if slow else None


def _lack_at_other_sizes(graph: JSONGraph, symbols: tuple[str, ...], constants: Mapping[str, np.ndarray]) -> str | None:
    """Return that oneDNN has no implementation, where the usual size of symbols does not fit, as in
    `broadcast(80, 16 * n)`: asked at the first size that does. None where it has one, or where none fits.

    Whether one is quick at such a size says little of others.
    """
    for size in range(1, SYMBOL_SIZE):
        try:
            _implementations(graph, dict.fromkeys(symbols, size), constants)
        except ShapeError:
            continue
        except StatusError as error:
            return f"oneDNN has no implementation: {error.message}" if error.status == "unimplemented" else None
        return None
    return None


def _can_fit(graph: JSONGraph, symbols: tuple[str, ...], constants: Mapping[str, np.ndarray]) -> bool:
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
            _implementations(graph, values, constants)
        except StatusError:
            return False
    return True
