"""The notation in which loop-level functions are written: `compute`, `reduce`, `scan`, `store`, `steps`.

b = PrimFuncBuilder()
x = b.input("x", TensorType((4, 8), "float32"))
total = b.reduce("sum", (4,), (8,), lambda s, r: x[s[0], r[0]])
scaled = b.compute((4, 8), lambda i, j: x[i, j] / total[i])
function = b.finish((scaled,))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kernelyard.dims import Dim, Shape
from kernelyard.ir.types import TensorType
from kernelyard.tir.buffer import Buffer
from kernelyard.tir.expr import INDEX, Axis, Expr, ExprLike, cast, index
from kernelyard.tir.primfunc import REDUCE, SPATIAL, STEP, ComputeBlock, IterVar, PrimFunc
from kernelyard.tir.visitor import rename_buffers

Axes = tuple[Axis, ...]


class PrimFuncBuilder:
    """Collects blocks in order; every notation returns the buffer that it writes."""

    def __init__(self) -> None:
        self._inputs: list[Buffer] = []
        self._locals: list[Buffer] = []
        self._blocks: list[ComputeBlock] = []
        self._names: set[str] = set()
        self._step: IterVar | None = None

    def input(self, name: str, type_: TensorType) -> Buffer:
        """Add an input parameter."""
        buffer = Buffer(self._fresh(name), type_.shape, type_.dtype)
        self._inputs.append(buffer)
        return buffer

    def compute(self, shape: Sequence[Dim], body: Callable[..., Expr], name: str = "t") -> Buffer:
        """Return a buffer whose element at each index is `body(*index)`."""
        axes = _axes("i", shape, SPATIAL)
        value = body(*_values(axes))
        return self._write(name, tuple(shape), value.dtype, axes, _values(axes), value)

    def reduce(
        self,
        reducer: str,
        shape: Sequence[Dim],
        extents: Sequence[Dim],
        body: Callable[[Axes, Axes], Expr],
        init: Callable[[Axes], Expr] | None = None,
        arg: Callable[[Axes, Axes], Expr] | None = None,
        name: str = "t",
    ) -> Buffer:
        """Return a buffer whose element at each index combines `body(index, point)` over all points of `extents`.

        arg: for "argmax" and "argmin", what to store of the point that won; for "argsort" and "argsort_descending",
          the position asked for.
        """
        spatial, reduced = _axes("i", shape, SPATIAL), _axes("k", extents, REDUCE)
        at, point = _values(spatial), _values(reduced)
        value = body(at, point)
        won = arg(at, point) if arg else None
        start = init(at) if init else None
        dtype = INDEX if won is not None else value.dtype
        return self._write(name, tuple(shape), dtype, spatial + reduced, at, value, reducer, start, won)

    def scan(
        self,
        shape: Sequence[Dim],
        axis: int,
        body: Callable[[Buffer, Axes], Expr],
        dtype: str,
        index_along: Callable[[Axis], Expr] = lambda k: k,
        name: str = "t",
    ) -> Buffer:
        """Return a buffer written along one axis in order; `body(buffer, index)` may load what was written before.

        index_along: where the step writes along the axis (to run from the end, say).
        """
        output = self._local(name, tuple(shape), dtype)
        axes = _axes("i", shape, SPATIAL)
        axes = axes[:axis] + (IterVar("k0", shape[axis], REDUCE),) + axes[axis + 1 :]
        at = _values(axes)
        where: tuple[Expr, ...] = at[:axis] + (index_along(at[axis]),) + at[axis + 1 :]
        self._add(ComputeBlock(output.name, _reduce_last(axes), output, where, body(output, at)))
        return output

    def buffer(self, shape: Sequence[Dim], dtype: str, name: str = "t") -> Buffer:
        """Return a buffer to `store` into."""
        return self._local(name, tuple(shape), dtype)

    def store(
        self,
        target: Buffer,
        extents: Sequence[Dim],
        indices: Callable[..., Sequence[ExprLike]],
        body: Callable[..., Expr],
        ordered: Sequence[int] = (),
    ) -> None:
        """Write `body(*point)` to `target[indices(*point)]` for every point of `extents`.

        ordered: axes of which different values may write the same element; they run in order, inside the others.
        """
        axes = tuple(
            IterVar(f"k{n}", extent, REDUCE) if n in ordered else IterVar(f"i{n}", extent, SPATIAL)
            for n, extent in enumerate(extents)
        )
        point = _values(axes)
        where = tuple(map(index, indices(*point)))
        name = self._fresh(f"{target.name}_store")
        self._add(ComputeBlock(name, _reduce_last(axes), target, where, body(*point)))

    @contextmanager
    def steps(self, extent: Dim) -> Iterator[Axis]:
        """Run what is written inside, all of it in order, for each value of a step axis; yields the value."""
        assert self._step is None, "steps are not nested"
        self._step = IterVar(self._fresh("step"), extent, STEP)
        try:
            yield self._step.axis
        finally:
            self._step = None

    def finish(self, results: Sequence[Buffer], attrs: Mapping[str, Any] = MappingProxyType({})) -> PrimFunc:
        """Return the function that returns `results`; they become its output parameters."""
        outputs = [self._copy(r) if r in self._inputs or r in results[:n] else r for n, r in enumerate(results)]
        parameters = {b: Buffer(self._fresh(f"out{n}"), b.shape, b.dtype) for n, b in enumerate(outputs)}
        blocks = tuple(rename_buffers(block, parameters) for block in self._blocks)
        kept = tuple(buffer for buffer in self._locals if buffer not in parameters)
        return PrimFunc((*self._inputs, *parameters.values()), blocks, len(outputs), kept, attrs)

    def _copy(self, buffer: Buffer) -> Buffer:
        return self.compute(buffer.shape, lambda *i: buffer[i], name="copy")

    def _write(
        self,
        name: str,
        shape: Shape,
        dtype: str,
        axes: tuple[IterVar, ...],
        indices: tuple[Expr, ...],
        value: Expr,
        reducer: str | None = None,
        init: Expr | None = None,
        arg: Expr | None = None,
    ) -> Buffer:
        output = self._local(name, shape, dtype)
        self._add(ComputeBlock(output.name, axes, output, indices, value, reducer, init, arg))
        return output

    def _add(self, block: ComputeBlock) -> None:
        self._blocks.append(block if self._step is None else replace(block, axes=(self._step, *block.axes)))

    def _local(self, name: str, shape: Shape, dtype: str) -> Buffer:
        buffer = Buffer(self._fresh(name), shape, dtype, "local")
        self._locals.append(buffer)
        return buffer

    def _fresh(self, name: str) -> str:
        wanted, count = name, 0
        while name in self._names:
            count += 1
            name = f"{wanted}_{count}"
        self._names.add(name)
        return name


def _axes(prefix: str, extents: Sequence[Dim], kind: str) -> tuple[IterVar, ...]:
    return tuple(IterVar(f"{prefix}{n}", extent, kind) for n, extent in enumerate(extents))


def _reduce_last(axes: Sequence[IterVar]) -> tuple[IterVar, ...]:
    """Reduce axes run inside the spatial ones: they are listed last."""
    return tuple(sorted(axes, key=lambda axis: axis.kind == REDUCE))


def _values(axes: Sequence[IterVar]) -> Axes:
    return tuple(axis.axis for axis in axes)


def conversion_block(name: str, source: Buffer, target: Buffer) -> ComputeBlock:
    """Return the block that copies a buffer into another one of its shape, converting."""
    axes = _axes("i", target.shape, SPATIAL)
    at = _values(axes)
    return ComputeBlock(name, axes, target, at, cast(source[at], target.dtype))
