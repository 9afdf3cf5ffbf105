"""Arithmetic on quantized tensors by code of our own: see `kernelyard_llvm.byte_arithmetic`.

oneDNN's binary primitives on 8 bits take two to five cycles for each element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.layout import dense
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive_kind import INTEGERS
from kernelyard_dnnl.primitives.affine import RESULT, affine_of
from kernelyard_dnnl.primitives.post_ops import SOURCE_1, Step, steps_of
from kernelyard_dnnl.primitives.requantization import Line, bounds_of, chain_of
from kernelyard_dnnl.processor import has_wide_integers
from kernelyard_dnnl.values import NativeKernel, Node, Value
from kernelyard_dnnl.work import WORTHWHILE_SECONDS
from kernelyard_llvm.byte_arithmetic import LINES, PRODUCT, SUM, Field, Kind, byte_arithmetic_kernel

ELEMENTS_PER_SECOND = 1e10
ROW = 1024  # elements from which on the begin of a row takes no time


class Side(NamedTuple):
    """An operand, and the numbers by which it is dequantized."""

    value: Value
    scale: float
    zero: int


class Rows(NamedTuple):
    """Rows of the first operand, their length, and for how many of them a row of the second one stands."""

    rows: int
    columns: int
    repeats: int


class Stored(NamedTuple):
    """How results are stored: their scale, and what the record says about them."""

    scale: float
    record: dict[Field, int]

    def with_numbers(self, numbers: Mapping[Field, float]) -> Stored:
        """Return it with other floats in the record."""
        bits = {place: int(np.float32(number).view(np.uint32)) for place, number in numbers.items()}
        return self._replace(record={**self.record, **bits})


def lower_byte_arithmetic(node: Node, graph: Lowering, left: Side, right: Side) -> Value | None:
    """Lower a sum or product of two operands whose dims lie in the same order, of which the first has the result's
    shape; None where this is not one for the code here."""
    is_product = node.attrs["algorithm"] == "mul"
    factor = left.scale * right.scale
    first = Line(factor, 0.0) if is_product else Line(1.0, -left.scale * left.zero - right.scale * right.zero)
    line, steps = chain_of(steps_of(node), None, "", first)
    rows, stored = _rows(left.value, right.value), _infer_stored(node, steps)
    if rows is None or stored is None:
        return None
    scaled = line.then(1 / stored.scale, 0.0)
    numbers = {
        Field.LEFT: left.zero if is_product else left.scale * scaled.scale,
        Field.RIGHT: right.zero if is_product else right.scale * scaled.scale,
        Field.FACTOR: scaled.scale,
        Field.OFFSET: scaled.offset,
    }
    signed = (side.value.descriptor.dtype == "int8" for side in (left, right))
    kind = Kind(PRODUCT if is_product else SUM, *signed)
    return _emit_kernel(node, graph, kind, rows, stored.with_numbers(numbers), (left.value, right.value))


def lower_byte_lines(
    node: Node, graph: Lowering, x: Value, line: tuple[np.ndarray, np.ndarray], steps: Sequence[Step]
) -> Value | None:
    """Lower x * factors + offsets for a tensor of the result's shape; None where this is not one for the code here.

    line: factors and offsets, which broadcast to x. steps: what follows, before the result is quantized again.
    """
    after, rest = chain_of(steps, None, "")
    stored, layout = _infer_stored(node, rest), x.descriptor
    if stored is None or not layout.is_dense:
        return None
    factors, offsets = line
    units = (factors * (after.scale / stored.scale), (offsets * after.scale + after.offset) / stored.scale)
    rows = repeat_rows(node, layout.order, [np.asarray(each, np.float32) for each in np.broadcast_arrays(*units)])
    if rows is None:
        return None
    numbers, columns = rows
    count = math.prod(node.shape) // columns
    kind = Kind(LINES, layout.dtype == "int8")
    return _emit_kernel(node, graph, kind, Rows(count, columns, count), stored, (x, graph.numbers(numbers)))


def repeat_rows(node: Node, order: Sequence[int], arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, int] | None:
    """Return a row of each array, and its length: what the innermost dims have, as often as makes up a long row.

    order: of the dims in memory. None where the arrays have outer dims.
    """
    rank = len(node.shape)
    laid = [each.reshape((1,) * (rank - each.ndim) + each.shape).transpose(order) for each in arrays]
    own, sizes = laid[0].shape, [node.shape[axis] for axis in order]
    first = next((place for place, size in enumerate(own) if size != 1), rank)
    if list(own[first:]) != sizes[first:]:
        return None
    length, rows = math.prod(own), math.prod(sizes[:first])
    repeats = next((n for n in range(1, rows) if rows % n == 0 and n * length >= ROW), rows)
    return np.concatenate([np.tile(each.reshape(-1), repeats) for each in laid]), length * repeats


def _emit_kernel(
    node: Node, graph: Lowering, kind: Kind, rows: Rows, stored: Stored, operands: tuple[Value, Value]
) -> Value | None:
    team = load_library().team_functions
    if team is None or not graph.native_kernels or not has_wide_integers() or node.dtype not in INTEGERS:
        return None
    kernel = byte_arithmetic_kernel(kind, team)
    if kernel is None:
        return None
    record = {**stored.record, Field.ROWS: rows.rows, Field.COLUMNS: rows.columns, Field.REPEATS: rows.repeats}
    left, right = operands
    count = math.prod(node.shape)
    code = NativeKernel(
        implementation=f"{kind.operation}:avx512",
        function=kernel.addresses["run"],
        record=tuple(record.get(place, 0) for place in Field if place is not Field.LENGTH),
        places={SOURCE: Field.LEFT_SOURCE, SOURCE_1: Field.RIGHT_SOURCE, DESTINATION: Field.RESULT},
        scratch_place=Field.SCRATCH,
        scratchpad_nbytes=0,
        threads=graph.threads if count / ELEMENTS_PER_SECOND >= WORTHWHILE_SECONDS else 1,
        flops=3 * count,
        keep=kernel,
    )
    layout = dense(node.shape, node.dtype, left.descriptor.order)
    result = left.view_as(layout) if graph.may_overwrite(left, [right]) else graph.new(layout)
    graph.emit(code, {SOURCE: left, SOURCE_1: right, DESTINATION: result})
    return result


def _rows(left: Value, right: Value) -> Rows | None:
    """Return rows over which both operands go on in memory; None where there are none.

    The second operand may be repeated over dims between the first ones and the innermost.
    """
    if not left.descriptor.is_dense or not right.descriptor.is_dense or left.descriptor.order != right.descriptor.order:
        return None
    order = left.descriptor.order
    sizes, others = ([each.shape[axis] for axis in order] for each in (left, right))
    if sizes == others:
        columns = long_row(sizes)
        return Rows(math.prod(sizes) // columns, columns, 1)
    repeated = [place for place, (size, other) in enumerate(zip(sizes, others, strict=True)) if size != other]
    first, behind = repeated[0], repeated[-1] + 1
    if any(other != 1 for other in others[first:behind]) or behind == len(sizes):
        return None
    columns = math.prod(sizes[behind:])
    return Rows(math.prod(sizes[:behind]), columns, math.prod(sizes[first:behind]))


def long_row(sizes: Sequence[int]) -> int:
    """Return the length of rows: of the innermost dims, as many as make up a long one."""
    columns = 1
    for size in reversed(sizes):
        columns *= size
        if columns >= ROW:
            break
    return max(columns, 1)


def _infer_stored(node: Node, steps: Sequence[Step]) -> Stored | None:
    """Return how a node's result is stored after post-ops; None where these do more than cut off."""
    result = affine_of(node, RESULT)
    cuts = [bounds_of(step) for step in steps]
    if result is None or None in cuts:
        return None
    scale, zero = result.numbers
    limits = np.iinfo(node.dtype)
    low, high = float(limits.min - zero), float(limits.max - zero)
    for least, most in filter(None, cuts):
        low, high = max(low, least / scale), min(high, most / scale)
    if low > high:
        return None
    return Stored(scale, {Field.ZERO: zero}).with_numbers({Field.LOW: low, Field.HIGH: high})
