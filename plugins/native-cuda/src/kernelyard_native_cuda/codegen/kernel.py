"""Kernel: the text of one CUDA kernel while it is written, and what launching it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Buffer, Expr, IterVar
from kernelyard_cuda.function_info import StepInfo
from kernelyard_native_cuda.codegen.expressions import Expressions, Keeper
from kernelyard_native_cuda.codegen.types import is_narrow_float, stored_type
from kernelyard_native_cuda.codegen.writer import Writer

MOST_INT = (1 << 31) - 1


@dataclass(frozen=True)
class WrittenMap:
    """A tensor as a kernel copies boxes of it: see `kernelyard_cuda.driver_api.TensorMap`."""

    buffer: Buffer
    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    box: tuple[int, ...]


@dataclass(frozen=True)
class WrittenKernel:
    """arguments: tensors, then numbers, as the kernel takes them, and then maps. blocks: how many of `threads` threads
    are started, along x, y and z. shared_nbytes: of dynamic shared memory. step: the loop for each of whose steps it is
    launched, in turn with its neighbours. needs: text that comes before it, once for all kernels that need it.
    """

    name: str
    text: str
    blocks: tuple[Dim, Dim, Dim]
    threads: int
    shared_nbytes: int
    arguments: tuple[Buffer | Dim, ...]
    step: StepInfo | None = None
    maps: tuple[WrittenMap, ...] = ()
    needs: tuple[str, ...] = ()


def launch_where(kernel: WrittenKernel, holds: Dim) -> WrittenKernel:
    """Return the kernel, started where a dim is 1 and not where it is 0."""
    x, y, z = kernel.blocks
    return replace(kernel, blocks=(x * holds, y, z))


def identifier(name: str) -> str:
    """Return a name as C takes it.

    Example:
        >>> identifier("x.1"), identifier("1st")
        ('x_1', '_1st')
    """
    clean = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{clean}" if clean[:1].isdigit() else clean


class Kernel:
    """written: the buffers that it writes. private: those of them that nobody else reads.

    is_approximate: whether its values need be no more exact than narrow floats are, as all that it gives is such.
    """

    def __init__(self, written: frozenset[Buffer], threads: int, private: frozenset[Buffer] = frozenset()) -> None:
        self.writer = Writer()
        self.threads = threads
        self.is_approximate = all(is_narrow_float(buffer.dtype) for buffer in written - private)
        self._written = written
        self._tensors: dict[Buffer, str] = {}
        self._numbers: dict[Dim, str] = {}
        self._maps: dict[WrittenMap, str] = {}

    def tensor(self, buffer: Buffer) -> str:
        """Return the name of a tensor's memory."""
        return self._tensors.setdefault(buffer, f"{identifier(buffer.name)}_{len(self._tensors)}")

    def map(self, wanted: WrittenMap) -> str:
        """Return the name of a tensor map."""
        return self._maps.setdefault(wanted, f"map{len(self._maps)}")

    def dim(self, dim: Dim) -> str:
        """Return the text of a dim; symbolic ones are numbers that the kernel is given."""
        if isinstance(dim, int):
            return f"{dim}ll" if dim >= 0 else f"({dim}ll)"
        return self._numbers.setdefault(dim, f"n{len(self._numbers)}")

    def expressions(
        self,
        axes: Mapping[str, str],
        known: Mapping[Expr, str] | None = None,
        kept: Mapping[Buffer, Keeper] | None = None,
    ) -> Expressions:
        """Return the generator of expressions in the kernel."""
        return Expressions(self.writer, self, axes, known, kept)

    def axes_at(self, point: str, axes: Sequence[IterVar]) -> dict[str, str]:
        """Return the values of the axes at a point of their space, whose last axis is the fastest."""
        names: dict[str, str] = {}
        if sum(axis.extent != 1 for axis in axes) > 1 and self.counts_in_int(axes) and not point.startswith("v"):
            point = self.writer.define("int", f"(int)({point})")
        for number, axis in enumerate(axes):
            step = dims.product(a.extent for a in axes[number + 1 :])
            text = point if step == 1 else f"{point} / {self._divisor(step, axes)}"
            outer = dims.product(a.extent for a in axes[:number])
            if axis.extent == 1:
                text = "0"
            elif outer != 1:
                text = f"{text} % {self._divisor(axis.extent, axes)}"
            names[axis.name] = self.writer.define("long long", text)
        return names

    def _divisor(self, dim: Dim, axes: Sequence[IterVar]) -> str:
        return str(dim) if isinstance(dim, int) and self.counts_in_int(axes) else self.dim(dim)

    @staticmethod
    def counts_in_int(axes: Sequence[IterVar]) -> bool:
        """Return True where the points of some axes are known to fit 32 bits, in which division is much faster."""
        total = dims.product(axis.extent for axis in axes)
        return isinstance(total, int) and total <= MOST_INT - (1 << 16)

    def define_point(self, axes: Sequence[IterVar], text: str) -> str:
        """Return a name for a point's number, in as few bits as will do."""
        return self.writer.define("int" if self.counts_in_int(axes) else "long long", text)

    def finish(
        self, name: str, blocks: Dim, shared_nbytes: int = 0, room_for: int = 0, needs: tuple[str, ...] = ()
    ) -> WrittenKernel:
        """Return the kernel with its head. room_for: the blocks that a multiprocessor is to have registers for; 0: one
        that may have as many as the compiler likes.
        """
        params = [
            f"GLOBAL({'' if buffer in self._written else 'const '}{stored_type(buffer.dtype)}) {tensor}"
            for buffer, tensor in self._tensors.items()
        ]
        params += [f"const long long {number}" for number in self._numbers.values()]
        params += [f"const __grid_constant__ TensorMap {name}" for name in self._maps.values()]
        bounds = f"{self.threads}, {room_for}" if room_for else str(self.threads)
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({", ".join(params)})'
        body = "\n".join(f"  {line}" for line in self.writer.text.splitlines())
        arguments = (*self._tensors, *self._numbers)
        text, grid, maps = f"{head} {{\n{body}\n}}\n", (blocks, 1, 1), tuple(self._maps)
        return WrittenKernel(name, text, grid, self.threads, shared_nbytes, arguments, maps=maps, needs=needs)
