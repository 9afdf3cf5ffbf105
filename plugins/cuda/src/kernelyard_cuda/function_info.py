"""Metadata for binding a function: saved beside the code, and validated when read back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.errors import ExecutionError
from kernelyard.runtime.api import Fields, TensorSpec, corrupted, read_dim
from kernelyard_cuda.driver_api import Grid

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
MOST_BLOCKS = ((1 << 31) - 1, 65535, 65535)  # along x, y and z
MOST_THREADS = 1024
MOST_SHARED_NBYTES = 227 << 10
MOST_BOX = 256  # elements of a tensor map's box along an axis
MAP_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class StepInfo:
    """A loop over `extent` steps; in each, numbers of kernels may use the symbol, which is 1 in the first."""

    symbol: str
    extent: Dim

    def values(self, values: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield the values of all symbols in each step."""
        for number in range(max(dims.evaluate(self.extent, values), 0)):
            yield {**values, self.symbol: number + 1}


@dataclass(frozen=True)
class TensorMapInfo:
    """See `kernelyard_cuda.driver_api.TensorMap`. tensor: by number, as those of a launch are."""

    tensor: int
    dtype: str
    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    box: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON; symbolic dims become text."""
        sizes, strides = map(_dims_to_json, (self.sizes, self.strides))
        return {"tensor": self.tensor, "dtype": self.dtype, "sizes": sizes, "strides": strides, "box": list(self.box)}


@dataclass(frozen=True)
class LaunchInfo:
    """A kernel over blocks along x, y and z, of `threads` threads and `shared_nbytes` of dynamic shared memory.

    tensors: what it takes first, by number: parameters of the function, its locals, its constants. numbers, maps: what
    follows. step: neighbours with the same one are launched in turn, for each of its steps.
    """

    kernel: str
    blocks: tuple[Dim, Dim, Dim]
    threads: int
    shared_nbytes: int
    tensors: tuple[int, ...]
    numbers: tuple[Dim, ...]
    step: StepInfo | None = None
    maps: tuple[TensorMapInfo, ...] = ()

    def places_of(self, tensor: int) -> tuple[int, ...]:
        """Return the places of a tensor among the kernel's arguments, maps of it included."""
        first_map = len(self.tensors) + len(self.numbers)
        places = [*enumerate(self.tensors), *enumerate((each.tensor for each in self.maps), first_map)]
        return tuple(place for place, number in places if number == tensor)

    def grid(self, values: Mapping[str, int]) -> Grid | None:
        """Return the launch grid; None if it is empty.

        Raises: ExecutionError for too many blocks.
        """
        x, y, z = (dims.evaluate(count, values) for count in self.blocks)
        return self.check_grid((x, y, z))

    def check_grid(self, blocks: tuple[int, int, int]) -> Grid | None:
        """Return the launch grid of so many blocks; None if it is empty. Raises: ExecutionError for too many."""
        if any(count > most for count, most in zip(blocks, MOST_BLOCKS, strict=True)):
            raise ExecutionError(
                "the launch grid of a kernel is too large",
                where=self.kernel,
                found=blocks,
                expected=f"at most {MOST_BLOCKS}",
            )
        return Grid(blocks, (self.threads, 1, 1), self.shared_nbytes) if min(blocks) > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON; symbolic dims become text."""
        step = self.step and {"step": {"symbol": self.step.symbol, "extent": _dim_to_json(self.step.extent)}}
        return {
            "kernel": self.kernel,
            "blocks": [_dim_to_json(count) for count in self.blocks],
            "threads": self.threads,
            "shared": self.shared_nbytes,
            "tensors": list(self.tensors),
            "numbers": [_dim_to_json(dim) for dim in self.numbers],
            **(step or {}),
            **({"maps": [each.to_json() for each in self.maps]} if self.maps else {}),
        }


@dataclass(frozen=True)
class FunctionInfo:
    """params: inputs, then `num_outputs` outputs. locals: bytes of each. launches: in order. constants: digests."""

    symbol: str
    params: tuple[TensorSpec, ...]
    num_outputs: int
    locals: tuple[Dim, ...]
    launches: tuple[LaunchInfo, ...]
    constants: tuple[str, ...] = ()

    def in_order(self, values: Mapping[str, int]) -> Iterator[tuple[LaunchInfo, Mapping[str, int]]]:
        """Yield the launches, those in a loop over steps for each step, with the values of the symbols."""
        for step, launches in groupby(self.launches, lambda launch: launch.step):
            each = tuple(launches)
            for here in (values,) if step is None else step.values(values):
                yield from ((launch, here) for launch in each)

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON; symbolic dims become text."""
        constants = {"constants": list(self.constants)} if self.constants else {}
        return {
            "symbol": self.symbol,
            "params": [spec.to_json() for spec in self.params],
            "outputs": self.num_outputs,
            "locals": [_dim_to_json(nbytes) for nbytes in self.locals],
            "launches": [launch.to_json() for launch in self.launches],
            **constants,
        }


def _dim_to_json(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _dims_to_json(sizes: tuple[Dim, ...]) -> list[int | str]:
    return [_dim_to_json(size) for size in sizes]


def read_function_info(value: Any, where: str) -> FunctionInfo:
    """Return a function's data from outside. Raises: ArtifactCorruptedError."""
    fields = Fields(value, where)
    params = fields.each("params", lambda item, place: Fields(item, place).tensor())
    locals_ = fields.each("locals", read_dim)
    constants = fields.texts("constants") if "constants" in fields else ()
    count = len(params) + len(locals_) + len(constants)
    return FunctionInfo(
        fields.text("symbol"),
        params,
        fields.integer("outputs", least=0, most=len(params)),
        locals_,
        fields.each("launches", lambda item, place: read_launch(item, place, count)),
        constants,
    )


def read_launch(value: Any, where: str, tensors: int) -> LaunchInfo:
    """Return a launch from outside. tensors: how many there are. Raises: ArtifactCorruptedError."""
    fields = Fields(value, where)
    kernel = fields.text("kernel")
    if not NAME.match(kernel):
        raise corrupted(where, kernel, "a C identifier")
    blocks = fields.each("blocks", read_dim)
    if len(blocks) != 3:
        raise corrupted(where, blocks, "blocks along x, y and z")
    return LaunchInfo(
        kernel,
        (blocks[0], blocks[1], blocks[2]),
        fields.integer("threads", least=1, most=MOST_THREADS),
        fields.integer("shared", least=0, most=MOST_SHARED_NBYTES),
        fields.indices("tensors", limit=tensors),
        fields.each("numbers", read_dim),
        _read_step(fields.any("step"), f"{where}.step") if "step" in fields else None,
        fields.each("maps", lambda item, place: _read_map(item, place, tensors)) if "maps" in fields else (),
    )


def _read_map(value: Any, where: str, tensors: int) -> TensorMapInfo:
    fields = Fields(value, where)
    sizes, strides = fields.each("sizes", read_dim), fields.each("strides", read_dim)
    box = fields.indices("box", limit=MOST_BOX + 1)
    if not 2 <= len(sizes) == len(strides) + 1 == len(box) <= 5 or 0 in box:
        raise corrupted(where, f"{len(sizes)} sizes, {len(strides)} strides, a box {box}", "a box of 2 to 5 axes")
    dtype = fields.text("dtype")
    if dtype not in MAP_DTYPES:
        raise corrupted(where, dtype, " or ".join(MAP_DTYPES))
    return TensorMapInfo(fields.integer("tensor", least=0, most=max(tensors - 1, 0)), dtype, sizes, strides, box)


def _read_step(value: Any, where: str) -> StepInfo:
    fields = Fields(value, where)
    symbol = fields.text("symbol")
    if not dims.is_identifier(symbol):
        raise corrupted(where, symbol, "a symbol")
    return StepInfo(symbol, read_dim(fields.any("extent"), where))
