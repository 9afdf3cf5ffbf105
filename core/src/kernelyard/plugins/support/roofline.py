"""Roofline: the least time that work can take, from its operations and from the bytes that it moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import ShapeError
from kernelyard.ir import Call, Op, TensorType
from kernelyard.ir.types import tensors_of
from kernelyard.patterns.matching.match_result import Match
from kernelyard.runtime.report_words import SYMBOL_SIZE
from kernelyard.transform.partition.region import Region

# Of one core: every plugin states its costs at these rates and by its own efficiency, so that costs have one scale
# whatever machine runs the compile, and artifacts do not depend on it.
FLOPS_PER_SECOND, BYTES_PER_SECOND = 1e11, 1e10
SIGNAL_SIZE = 1 << 14  # a second of speech


def roofline_seconds(work: Match | Region) -> float:
    """Return the seconds that a match or a region takes a kernel as quick as the core's arithmetic and memory allow.

    What the calls of a group hand each other stays in registers: only the largest of them goes through memory.
    """
    calls = calls_of(work)
    flops, nbytes = sum(map(flops_of, calls)), max(map(bytes_of, calls), default=0)
    return max(flops / FLOPS_PER_SECOND, nbytes / BYTES_PER_SECOND)


def calls_of(work: Match | Region) -> Sequence[Call]:
    """Return the operators that a match, or the composites of a region, consist of."""
    if isinstance(work, Match):
        return work.calls
    return [call for calls in composites_of(work) for call in calls]


def composites_of(region: Region) -> list[Sequence[Call]]:
    """Return the operators of each composite of a region."""
    composites = (composite for _, composite in region.composites())
    return [[binding.value for binding in each.bindings if isinstance(binding.value, Call)] for each in composites]


def flops_of(call: Call) -> int:
    """Return the estimated floating-point operations of an op call, its symbolic dims taken as `_size_of_symbols`."""
    types = [arg.type for arg in call.args if isinstance(arg.type, TensorType)]
    if isinstance(call.op, Op) and call.op.flops is not None:
        amounts = [call.op.flops(types, call.type, call.attrs)]
    else:
        amounts = [tensor.numel for tensor in tensors_of(call.type)]
    return _sum(amounts, lambda: _tensors_of(call))


def bytes_of(call: Call) -> int:
    """Return the estimated bytes that an op call reads and writes, its symbolic dims as in `flops_of`."""
    types = _tensors_of(call)
    return _sum([tensor.nbytes for tensor in types], lambda: types)


def nbytes_of(tensor: TensorType) -> int:
    """Return the estimated bytes of a tensor, its symbolic dims as in `flops_of`."""
    return _sum([tensor.nbytes], lambda: [tensor])


def _sum(amounts: Sequence[Dim], types: Callable[[], Sequence[TensorType]]) -> int:
    """Return the sum of amounts, the symbols in them as large as in a call of these types."""
    if all(isinstance(amount, int) for amount in amounts):
        return sum(amounts)  # pyright: ignore[reportArgumentType, reportCallIssue, reportReturnType]
    size = _size_of_symbols(types())
    return sum(_estimate(amount, size) for amount in amounts)


def _tensors_of(call: Call) -> list[TensorType]:
    return [tensor for arg in call.args for tensor in tensors_of(arg.type)] + list(tensors_of(call.type))


def _size_of_symbols(types: Sequence[TensorType]) -> int:
    """Return what symbols are taken as: 64; the length of a signal where some tensor would have nothing in it then,
    as the frames of n samples, n // 160 - 1."""
    symbolic = [dim for tensor in types for dim in tensor.shape if not isinstance(dim, int)]
    return SYMBOL_SIZE if all(_estimate(dim, SYMBOL_SIZE) for dim in symbolic) else SIGNAL_SIZE


def _estimate(amount: Dim, size: int) -> int:
    try:
        return max(0, dims.evaluate(amount, dict.fromkeys(dims.symbols_of(amount), size)))
    except ShapeError:  # that is no possible size for every symbol of this call; it stays uncounted
        return 0
