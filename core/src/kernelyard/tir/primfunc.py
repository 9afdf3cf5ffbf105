"""Compute blocks and the loop-level function that holds them.

A `ComputeBlock` says what is written where, for every point of its iteration space; how the loops are ordered, split,
vectorised and threaded is the code generator's choice, within this: spatial axes may run in any order and at the same
time, reduce axes run in order, from 0 up, and blocks run as if one after another: those that share a step axis, all of
them for each of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kernelyard import dims, dtypes
from kernelyard.cached_property import cached_property
from kernelyard.dims import Dim
from kernelyard.errors import IRError
from kernelyard.ir.expr import BaseFunction
from kernelyard.ir.printer import to_text
from kernelyard.ir.types import TensorType, TupleType, Type
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import Axis, Const, DimValue, Expr, Load

SPATIAL, REDUCE, STEP = "spatial", "reduce", "step"
KINDS_OF_AXES = (SPATIAL, REDUCE, STEP)
SORTS = ("argsort", "argsort_descending")
REDUCERS = ("sum", "prod", "max", "min", "argmax", "argmin", "any", "all", *SORTS)


@dataclass(frozen=True)
class IterVar:
    """An iteration variable in [0, extent); names are unique within a block. kind: "spatial", "reduce" or "step"."""

    name: str
    extent: Dim
    kind: str = SPATIAL

    @property
    def axis(self) -> Axis:
        """The variable's value as an expression."""
        return Axis(self.name)


@dataclass(frozen=True)
class ComputeBlock:
    """`output[indices] = body` for every point of the iteration space.

    reducer: with one, the bodies of all reduce points are combined into the element, starting from `init` (None: the
      reducer's neutral element), which may use the spatial axes; `indices` use only these then.
      "argmax" and "argmin" store `arg` (int64) of the first point whose body is extreme; a NaN is extreme.
      "argsort" and "argsort_descending" sort the bodies along their only reduce axis, and store (int64) the place on it
      of the body at position `arg`, which may use the spatial axes. Equal bodies keep their order; a NaN is equal to
      another and greater than any number. `kernelyard.tir.sorting` says which points share a sorted row.
      Without a reducer, reduce axes only order the writes: a scan may read what earlier points wrote, and of a
      scatter's writes to one element the last stays.
    axes: at most one is a step axis. It stands outside of all others: consecutive blocks with the same one are run, in
      order, for 0, then for 1, and so on, and may read what any of them wrote for an earlier value (a recurrence).
    """

    name: str
    axes: tuple[IterVar, ...]
    output: Buffer
    indices: tuple[Expr, ...]
    body: Expr
    reducer: str | None = None
    init: Expr | None = None
    arg: Expr | None = None

    @property
    def spatial_axes(self) -> tuple[IterVar, ...]:
        return tuple(axis for axis in self.axes if axis.kind == SPATIAL)

    @property
    def reduce_axes(self) -> tuple[IterVar, ...]:
        return tuple(axis for axis in self.axes if axis.kind == REDUCE)

    @cached_property
    def step_axis(self) -> IterVar | None:
        """The axis of the loop that the block shares with its neighbours."""
        return next((axis for axis in self.axes if axis.kind == STEP), None)

    @property
    def writes_spatial_axes(self) -> bool:
        """True when `indices` are the spatial axes in order: each element of the output is written by one point."""
        return self.indices == tuple(axis.axis for axis in self.spatial_axes)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Every expression of the block: indices, body, init, arg."""
        return tuple(e for e in (*self.indices, self.body, self.init, self.arg) if e is not None)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """The different loads of the block, in order of first use."""
        return tuple(dict.fromkeys(e for e in walk(*self.expressions) if isinstance(e, Load)))

    @cached_property
    def reads(self) -> frozenset[Buffer]:
        """The buffers that the block reads."""
        return frozenset(load.buffer for load in self.loads)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Names of the symbolic dims that the block uses, those of its buffers included."""
        used: list[Dim] = [axis.extent for axis in self.axes]
        used += [e.dim for e in walk(*self.expressions) if isinstance(e, DimValue)]
        used += [dim for buffer in (self.output, *self.reads) for dim in buffer.shape]
        return frozenset().union(*map(dims.symbols_of, used))


class PrimFunc(BaseFunction):
    """A loop-level function: reads its first parameters, writes the last `num_outputs`.

    params: inputs, then outputs; locals: buffers of scope "local"; blocks: in order.
    attrs used by the core: "op_pattern" (see AnnotateTIROpPattern), "ops" (names of the graph-level ops it stands for).
    """

    def __init__(
        self,
        params: tuple[Buffer, ...],
        blocks: tuple[ComputeBlock, ...],
        num_outputs: int = 1,
        locals_: tuple[Buffer, ...] = (),
        attrs: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.params = tuple(params)
        self.blocks = tuple(blocks)
        self.num_outputs = num_outputs
        self.locals = tuple(locals_)
        self.attrs = MappingProxyType(dict(attrs))

    def __str__(self) -> str:
        """Return the text form, which `parse_primfunc` reads."""
        return to_text(self)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return self.params[: len(self.params) - self.num_outputs]

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return self.params[len(self.params) - self.num_outputs :]

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbolic dims that the function uses, sorted."""
        of_buffers = [dims.symbols_of(dim) for buffer in (*self.params, *self.locals) for dim in buffer.shape]
        return tuple(sorted(frozenset().union(*of_buffers, *(block.symbols for block in self.blocks))))

    @property
    def result_type(self) -> Type:
        """The type of a `call_tir` of this function: a tensor, or a tuple for several outputs."""
        types = tuple(TensorType(buffer.shape, buffer.dtype) for buffer in self.outputs)
        return types[0] if len(types) == 1 else TupleType(types)

    @property
    def structure(self) -> tuple[object, ...]:
        """Return the hashable key of structural equality, attributes included."""
        return (self.params, self.blocks, self.num_outputs, self.locals, tuple(sorted(self.attrs.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrimFunc) and self.structure == other.structure

    def __hash__(self) -> int:
        return hash(self.structure)

    def with_attrs(self, **attrs: Any) -> PrimFunc:
        """Return the same function with attributes added or replaced."""
        return PrimFunc(self.params, self.blocks, self.num_outputs, self.locals, {**self.attrs, **attrs})

    def with_blocks(self, blocks: tuple[ComputeBlock, ...]) -> PrimFunc:
        """Return the same function with other blocks."""
        return PrimFunc(self.params, blocks, self.num_outputs, self.locals, self.attrs)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Yield every different sub-expression of some expressions, parents before children."""
    seen: set[int] = set()
    stack = list(reversed(roots))
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        yield expr
        stack.extend(reversed(expr.children))


def neutral_element(reducer: str, dtype: str) -> Const:
    """Return the identity element of a reducer, its initial value (for argmax and argmin: the value to beat).

    Raises: IRError for an unknown reducer.
    """
    if reducer in ("any", "all"):
        return Const(reducer == "all", "bool")
    if reducer in ("sum", "prod"):
        one = reducer == "prod"
        return Const(float(one) if dtypes.is_float(dtype) else one if dtype == "bool" else int(one), dtype)
    if reducer not in REDUCERS:
        raise IRError(f"no reducer is called {reducer!r}", expected=", ".join(REDUCERS))
    lowest, highest = _extremes(dtype)
    return Const(lowest if reducer in ("max", "argmax") else highest, dtype)


def _extremes(dtype: str) -> tuple[float, float]:
    if dtypes.is_float(dtype):
        return float("-inf"), float("inf")
    return (False, True) if dtype == "bool" else dtypes.integer_range(dtype)
