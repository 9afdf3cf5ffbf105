"""Grids, numbers and workspace of a function's launches for known sizes: found once for all steps that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kernelyard.dims import Dim, DimTable, symbols_of
from kernelyard.runtime.api import align
from kernelyard_cuda.driver_api import Argument, Grid, TensorMap
from kernelyard_cuda.function_info import FunctionInfo, LaunchInfo


class SizedLaunch(NamedTuple):
    """A launch whose grid is not empty. numbers: what its kernel takes after the tensors. maps: of each of its maps,
    the sizes and strides.
    """

    info: LaunchInfo
    grid: Grid
    numbers: tuple[Argument, ...]
    maps: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()

    def tensor_maps(self, tensors: Sequence[Argument]) -> list[TensorMap]:
        """Return the maps, given the tensors of the function."""
        pairs = zip(self.info.maps, self.maps, strict=True)
        return [TensorMap(tensors[info.tensor], info.dtype, *sized, info.box) for info, sized in pairs]


class SizedLaunches(NamedTuple):
    """The launches of a function, in order. locals: offset and bytes of each in a workspace of `workspace_nbytes`."""

    launches: tuple[SizedLaunch, ...]
    locals: tuple[tuple[int, int], ...]
    workspace_nbytes: int


class LaunchSizes:
    """Finds `SizedLaunches` for the values of symbols, and keeps the last ones: layers that are alike ask in turn.

    Example:
        >>> from kernelyard.dims import symbol
        >>> launch = LaunchInfo("k", (symbol("n"), 1, 1), 64, 0, (0,), (symbol("n") * 2,))
        >>> sizes = LaunchSizes(FunctionInfo("f", (), 0, (symbol("n") * 4,), (launch,)))
        >>> found = sizes.at({"n": 3})
        >>> found.launches[0].grid.blocks, found.launches[0].numbers[0].value, found.locals, found.workspace_nbytes
        ((3, 1, 1), 6, ((0, 12),), 64)
    """

    def __init__(self, function: FunctionInfo) -> None:
        self._function = function
        self._locals = DimTable(function.locals)
        self._tables = {id(each): DimTable(tuple(_dims_of(each))) for each in function.launches}
        dims = [*function.locals]
        for launch in function.launches:
            dims += [*_dims_of(launch), *((launch.step.extent,) if launch.step else ())]
        steps = {launch.step.symbol for launch in function.launches if launch.step}
        self._symbols = sorted({name for dim in dims for name in symbols_of(dim)} - steps)
        self._last: tuple[list[int | None], SizedLaunches] | None = None

    def at(self, values: Mapping[str, int]) -> SizedLaunches:
        """Return the launches. Raises: ExecutionError for too many blocks; ShapeError."""
        key = [values.get(name) for name in self._symbols]
        last = self._last
        if last is None or last[0] != key:
            last = self._last = key, self._find(values)
        return last[1]

    def _find(self, values: Mapping[str, int]) -> SizedLaunches:
        places: list[tuple[int, int]] = []
        total = 0
        for nbytes in self._locals(values):
            size = max(nbytes, 0)
            places.append((total, size))
            total += align(size)
        launches: list[SizedLaunch] = []
        for info, here in self._function.in_order(values):
            x, y, z, *rest = self._tables[id(info)](here)
            grid = info.check_grid((x, y, z))
            if grid is not None:  # a grid of nothing is an error to the driver
                values_left = iter(rest)
                numbers = tuple(Argument(next(values_left)) for _ in info.numbers)
                launches.append(SizedLaunch(info, grid, numbers, _evaluate_maps(info, values_left)))
        return SizedLaunches(tuple(launches), tuple(places), total)


def _dims_of(launch: LaunchInfo) -> Iterator[Dim]:
    yield from (*launch.blocks, *launch.numbers)
    for each in launch.maps:
        yield from (*each.sizes, *each.strides)


def _evaluate_maps(info: LaunchInfo, values: Iterator[int]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    return tuple(
        (tuple(next(values) for _ in each.sizes), tuple(next(values) for _ in each.strides)) for each in info.maps
    )
