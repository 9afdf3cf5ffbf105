"""Symbolic dims from concrete shapes: every symbol gets one value, and everything else is checked against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.errors import InputShapeError, ShapeError
from kernelyard.runtime.abi.spec import TensorSpec

MAX_SOLVED = 64


class DimValues:
    """Values of dims for given symbols; each distinct dim is evaluated once."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self._symbols = symbols
        self._known: dict[Dim, int] = {}

    def __call__(self, dim: Dim) -> int:
        """Return the value of a dim. Raises: ShapeError."""
        if isinstance(dim, int):
            return dim
        if dim not in self._known:
            self._known[dim] = dims.evaluate(dim, self._symbols)
        return self._known[dim]

    def shape(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        """Return the values of a shape. Raises: ShapeError."""
        return tuple([self(dim) for dim in shape])


def solve_symbols(
    specs: Sequence[TensorSpec],
    shapes: Sequence[tuple[int, ...]],
    values: dict[str, int],
    least: int = 1,
    *,
    may_leave_unknown: bool = False,
) -> None:
    """Fill `values` with the symbols' values, and check ranks and sizes; values that are there already are kept.

    least: what a symbol may be; code that is compiled for a symbol takes it to be 1 or more. may_leave_unknown: what a
    called function returns may have sizes that several symbols of its own make up, `n + m`; from these no symbol can be
    read off, and nothing can be checked.
    Raises: InputShapeError naming the tensor, the axis and the expectation.
    """
    deferred: list[tuple[TensorSpec, int, Dim, int]] = []
    for spec, shape in zip(specs, shapes, strict=True):
        if len(shape) != len(spec.shape):
            raise InputShapeError(
                "a tensor has the wrong rank",
                where=_describe_input(spec),
                found=f"rank {len(shape)}, shape {tuple(shape)}",
                expected=f"rank {len(spec.shape)}, {spec!r}",
            )
        for axis, (dim, size) in enumerate(zip(spec.shape, shape, strict=True)):
            name = dims.as_symbol(dim)
            if name is not None and name not in values:
                values[name] = _check_least(least, spec, axis, dim, size)
            elif dim != size:
                deferred.append((spec, axis, dim, size))
    for spec, axis, dim, size in deferred:
        _solve_affine(dim, size, values, least)
        if may_leave_unknown and not dims.symbols_of(dim) <= values.keys():
            continue
        _check(spec, axis, dim, size, values)


class SymbolSolver:
    """`solve_symbols` for the same tensors in call after call, empty ones too: what it found for the last shapes is
    kept.
    """

    def __init__(self, specs: Sequence[TensorSpec], *, may_leave_unknown: bool = False) -> None:
        self._specs = tuple(specs)
        self._may_leave_unknown = may_leave_unknown
        self._symbols = sorted({name for spec in specs for dim in spec.shape for name in dims.symbols_of(dim)})
        self._solved: dict[tuple[object, ...], dict[str, int]] = {}

    def __call__(self, shapes: Sequence[tuple[int, ...]], values: dict[str, int]) -> None:
        """See `solve_symbols`."""
        key = (tuple(shapes), tuple(map(values.get, self._symbols)))
        solved = self._solved.get(key)
        if solved is None:
            found = dict(values)
            solve_symbols(self._specs, shapes, found, least=0, may_leave_unknown=self._may_leave_unknown)
            if len(self._solved) >= MAX_SOLVED:
                self._solved.clear()
            solved = self._solved[key] = {name: found[name] for name in self._symbols if name in found}
        values.update(solved)


def stack_items(
    items: Sequence[Any],
    spec: TensorSpec,
    values: Mapping[str, int],
    stack: Callable[[Sequence[Any]], Any] = np.stack,
) -> Any:
    """Stack arrays along a new first axis; without arrays, the other sizes are 0 unless `values` has them.

    Raises: ShapeError when they differ in shape.
    """
    shapes = {item.shape for item in items}
    if len(shapes) > 1:
        raise ShapeError("the values that a loop stacks differ in shape", found=" and ".join(map(str, sorted(shapes))))
    if items:
        return stack(items)
    known = [dims.evaluate(dim, values) if dims.symbols_of(dim) <= values.keys() else 0 for dim in spec.shape[1:]]
    return np.empty((0, *known), dtypes.to_numpy(spec.dtype))


def _check_least(least: int, spec: TensorSpec, axis: int, dim: Dim, size: int) -> int:
    if size < least:
        raise InputShapeError(
            f"axis {axis} is empty",
            where=_describe_input(spec),
            found=size,
            expected=f"{dim}, a size of at least {least}",
        )
    return size


def _solve_affine(dim: Dim, size: int, values: dict[str, int], least: int) -> None:
    """Give the one unknown symbol of `slope * symbol + offset` the value that makes the dim `size`, if there is one."""
    unknown = dims.symbols_of(dim) - values.keys()
    if len(unknown) != 1:
        return
    (name,) = unknown
    at_one, at_two, at_three = (dims.evaluate(dim, {**values, name: n}) for n in (1, 2, 3))
    slope = at_two - at_one
    if slope == 0 or at_three - at_two != slope:
        return
    value, rest = divmod(size - at_one + slope, slope)
    if rest == 0 and value >= least:
        values[name] = value


def _check(spec: TensorSpec, axis: int, dim: Dim, size: int, values: dict[str, int]) -> None:
    try:
        expected = dims.evaluate(dim, values)
    except ShapeError as error:
        raise InputShapeError(
            f"axis {axis} has an impossible size",
            where=_describe_input(spec),
            found=size,
            expected=f"{dim}: {error.message}",
        ) from error
    if expected != size:
        known = ", ".join(f"{name} = {values[name]}" for name in sorted(dims.symbols_of(dim) & values.keys()))
        raise InputShapeError(
            f"axis {axis} has the wrong size",
            where=_describe_input(spec),
            found=size,
            expected=f"{dim} = {expected} ({known})" if known else str(expected),
        )


def _describe_input(spec: TensorSpec) -> str | None:
    return f"input {spec.name!r}" if spec.name else None
