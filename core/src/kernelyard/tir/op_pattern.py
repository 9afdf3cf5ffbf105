"""Classify PrimFuncs by their access pattern (elementwise, broadcast, injective, reduction, ...), for fusion."""

from __future__ import annotations

from collections.abc import Sequence

from kernelyard.tir.analysis import axes_of
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Binary, Const, DimValue, Expr, Load, Select, Unary
from kernelyard.tir.primfunc import ComputeBlock, PrimFunc, walk

# From the tamest to the wildest.
ELEMENTWISE = "elementwise"  # every input is read at the output's index
BROADCAST = "broadcast"  # ... or with some of its axes left out
INJECTIVE = "injective"  # each output element is made of a few input elements, anywhere
REDUCTION = "reduction"  # rows are combined; softmax and norms too
ANCHOR = "out_elementwise_fusable"  # products are summed: matmul, convolution
OPAQUE = "opaque"  # scans, recurrences, scatters, several outputs, outputs written piece by piece
KINDS = (ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION, ANCHOR, OPAQUE)


def classify(function: PrimFunc) -> str:
    """Return the kind of a function, one of `KINDS`."""
    outputs = set(function.outputs)
    writers = [block for block in function.blocks if block.output in outputs]
    if any(block.step_axis for block in function.blocks):
        return OPAQUE
    if len(writers) != 1 or function.num_outputs != 1 or not is_pure(writers[0]):
        return OPAQUE
    if any(block.reducer is not None for block in function.blocks):
        return ANCHOR if any(map(is_contraction, function.blocks)) else REDUCTION
    inputs = set(function.inputs)
    if len(function.blocks) > 1:
        return INJECTIVE
    block = writers[0]
    reads = [_read_kind(load, block) for load in block.loads if load.buffer in inputs]
    return max(reads, key=KINDS.index, default=BROADCAST)


def is_pure(block: ComputeBlock) -> bool:
    """Return True when each element is written by one point, from other buffers."""
    ordered = block.reducer is None and bool(block.reduce_axes)
    return block.writes_spatial_axes and not ordered and block.output not in block.reads


def is_contraction(block: ComputeBlock) -> bool:
    """Return True for a contraction of two different buffers with data reuse of each."""
    if block.reducer != "sum" or not block.reduce_axes:
        return False
    spatial = {axis.name for axis in block.spatial_axes if axis.extent != 1}
    products = [e for e in walk(block.body) if isinstance(e, Binary) and e.op == "mul"]
    return any(axes_of(p.a) & spatial != axes_of(p.b) & spatial and _loads(p.a) and _loads(p.b) for p in products)


def _loads(expr: Expr) -> bool:
    return any(isinstance(e, Load) for e in walk(expr))


def _read_kind(load: Load, block: ComputeBlock) -> str:
    axes = tuple(axis.axis for axis in block.spatial_axes)
    if load.indices == axes and load.buffer.shape == block.output.shape:
        return ELEMENTWISE
    return BROADCAST if is_broadcast_read(load.indices, axes) else INJECTIVE


def is_broadcast_read(indices: Sequence[Expr], axes: Sequence[Axis]) -> bool:
    """Return True when the indices are some of the axes in their order, with zeros between."""
    position = 0
    for index in indices:
        if isinstance(index, Const) and index.value == 0:
            continue
        axis = _broadcast_axis(index)
        if axis is None or axis not in axes[position:]:
            return False
        position = axes.index(axis) + 1
    return True


def _broadcast_axis(index: Expr) -> Axis | None:
    """Return the axis of `i`, or of `1 == n ? 0 : i`."""
    match index:
        case Axis():
            return index
        case Select(condition=Binary(op="eq", a=DimValue()), a=Const(value=0), b=Axis() as axis):
            return axis
    return None


def reads_prefix(load: Load, axes: Sequence[Axis]) -> bool:
    """Return True when a buffer is read at the leading axes, in order, and zeros: one element for each row of the
    block.
    """
    taken = [index for index in load.indices if not (isinstance(index, Const) and index.value == 0)]
    return bool(taken) and taken == list(axes[: len(taken)])


def reads_once(load: Load, block: ComputeBlock) -> bool:
    """Return True when different points of a block read different elements.

    Every axis is an index (perhaps shifted).
    """
    found: frozenset[str] = frozenset()
    for index in load.indices:
        axes = axes_of(index)
        if len(axes) > 1 or axes & found or any(isinstance(e, Load) for e in walk(index)):
            return False
        found |= axes
    return found >= {axis.name for axis in block.axes if axis.extent != 1}


def reads_transposed(block: ComputeBlock) -> bool:
    """Return True when a block writes along one axis what it reads along another.

    A kernel that does nothing else transposes tiles; inside a loop over rows, each element would take a cache line.
    """
    axes = [axis.axis for axis in block.spatial_axes if axis.extent != 1]
    return any(load.indices[-1] in axes[:-1] and axes[-1] in load.indices[:-1] for load in block.loads if load.indices)


_COSTS = {
    **dict.fromkeys(("neg", "abs", "sign", "floor", "ceil", "round", "trunc", "isnan", "isinf", "not", "bitnot"), 1),
    **dict.fromkeys(("sqrt", "rsqrt"), 5),
    **dict.fromkeys(("div", "floordiv", "truncdiv", "mod", "fmod"), 4),
    "pow": 30,
}
_TRANSCENDENTAL_COST = 10


def cost(*exprs: Expr) -> int:
    """Estimate the number of simple operations of some expressions, shared subexpressions counted once."""
    return sum(_node_cost(expr) for expr in walk(*exprs))


def _node_cost(expr: Expr) -> int:
    match expr:
        case Unary():
            return _COSTS.get(expr.op, _TRANSCENDENTAL_COST)
        case Binary():
            return _COSTS.get(expr.op, 1)
        case Axis() | Const() | DimValue():
            return 0
    return 1


def buffers_read(function: PrimFunc, buffer: Buffer) -> list[tuple[ComputeBlock, Load]]:
    """Collect the loads of a function, by buffer."""
    return [(block, load) for block in function.blocks for load in block.loads if load.buffer == buffer]
