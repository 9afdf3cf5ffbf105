"""Launch kernels of PTX text on arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from .block import Block
from .errors import PtxError
from .instructions import HANDLERS
from .instructions.warp import waits_for
from .memory import Memory
from .parser import Function, Variable, parse

GLOBAL_BASE = 1 << 32
MOST_SHARED_NBYTES = 227 << 10
Size = tuple[int, int, int]


class GlobalMemory:
    """Memory of a GPU, in which arrays lie that kernels of several programs read and write."""

    def __init__(self) -> None:
        self.space = Memory(GLOBAL_BASE)

    def put(self, array: np.ndarray) -> int:
        """Return the address of a copy."""
        return self.space.allocate(array.nbytes, values=np.ascontiguousarray(array).tobytes())

    def empty(self, nbytes: int) -> int:
        """Return the address of memory that nothing has been written to: NaN, read as numbers."""
        return self.space.allocate(nbytes)

    def get(self, address: int, shape: Sequence[int], dtype: np.dtype | type) -> np.ndarray:
        data = self.space.read(address, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return data.copy().view(dtype).reshape(shape)


class Program:
    """The kernels of a text, with its variables in global memory."""

    def __init__(self, text: str, memory: GlobalMemory) -> None:
        self.module, self.memory = parse(text), memory
        self._symbols: dict[str, int] = {}
        for variable in self.module.variables:
            if variable.space in ("global", "const"):
                values = variable.values.ljust(variable.nbytes, b"\0")
                self._symbols[variable.name] = memory.space.allocate(variable.nbytes, variable.align, values)

    def launch(
        self, kernel: str, blocks: Size, threads: Size, arguments: Sequence[int], shared_nbytes: int = 0
    ) -> None:
        """Run a kernel: every block to its end, one after another. arguments: the bits of each parameter.

        Raises: PtxError naming the instruction, and where it is known the thread and the address.
        """
        function = self.module.functions[kernel]
        if len(arguments) != len(function.parameters):
            raise PtxError(f"{kernel} has {len(function.parameters)} parameters, not {len(arguments)}")
        params, symbols = _parameters(function, arguments)
        symbols = {**self._symbols, **symbols}
        shared_size, shared_symbols = self._shared(function, shared_nbytes)
        local_size, local_symbols = _laid_out([v for v in function.variables if v.space == "local"], 0)
        symbols |= shared_symbols | local_symbols
        lanes = -(-int(np.prod(threads)) // 32) * 32
        for z, y, x in itertools.product(*map(range, reversed(blocks))):
            shared, local = Memory(0, gap=0), Memory(0, gap=0)
            shared.allocate(shared_size)
            local.allocate(-(-local_size // 16) * 16 * lanes)
            memory = self.memory.space
            spaces = {"global": memory, "const": memory, "param": params, "shared": shared, "local": local}
            block = Block(function, spaces, symbols, threads, blocks, (x, y, z), local_size)
            with np.errstate(all="ignore"):
                block.run(HANDLERS, waits_for)

    def _shared(self, function: Function, dynamic: int) -> tuple[int, dict[str, int]]:
        """Return how much shared memory there is, and the addresses in it; that of the launch is behind the rest."""
        variables = [v for v in (*self.module.variables, *function.variables) if v.space == "shared"]
        size, symbols = _laid_out([v for v in variables if v.nbytes], 0)
        start = -(-size // 1024) * 1024 if dynamic else size
        symbols |= {v.name: start for v in variables if not v.nbytes}
        if start + dynamic > MOST_SHARED_NBYTES:
            raise PtxError(f"{start + dynamic} bytes of shared memory are more than {MOST_SHARED_NBYTES}")
        return start + dynamic, symbols


def _laid_out(variables: Sequence[Variable], start: int) -> tuple[int, dict[str, int]]:
    symbols = {}
    for variable in variables:
        start = -(-start // variable.align) * variable.align
        symbols[variable.name] = start
        start += variable.nbytes
    return start, symbols


def _parameters(function: Function, arguments: Sequence[int]) -> tuple[Memory, dict[str, int]]:
    size, symbols = _laid_out([*function.parameters, *(v for v in function.variables if v.space == "param")], 0)
    data = bytearray(size)
    for variable, argument in zip(function.parameters, arguments, strict=True):
        place = symbols[variable.name]
        data[place : place + variable.nbytes] = (argument & ((1 << 8 * variable.nbytes) - 1)).to_bytes(
            variable.nbytes, "little"
        )
    memory = Memory(0, gap=0)
    memory.allocate(size, values=bytes(data))
    return memory, symbols
