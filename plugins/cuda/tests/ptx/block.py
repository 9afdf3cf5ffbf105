"""A block of threads: registers of all threads as arrays, state spaces, and which threads go on next.

Threads that stand at the smallest place in the text go first, together, so that those that took different ways meet
again where the ways do. Those that an instruction has to be executed with (a barrier, shuffle, matrix product) are waited
for, as GPUs from Volta on do; a wait without end is an error that says who stands where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .errors import PtxError
from .memory import Memory
from .parser import Address, Function, Instruction, Literal, Not, Operand, Register, Symbol, Vector
from .scalars import bits_of, literal, nbytes_of, typed

WARP = 32
MOST_STEPS = 2_000_000  # of groups of threads: a kernel that takes more does not end
# Generic addresses of shared, local and parameter memory; global memory is at its own.
SHARED_BASE, LOCAL_BASE, PARAM_BASE = 1 << 56, 1 << 57, 1 << 58
NO_BARRIER = -1

Handler = Callable[["Block", Instruction], None]


class Block:
    """mask: the threads that execute the instruction at hand. barrier: at which one a thread waits."""

    def __init__(
        self,
        function: Function,
        spaces: dict[str, Memory],
        symbols: dict[str, int],
        threads: tuple[int, int, int],
        blocks: tuple[int, int, int],
        index: tuple[int, int, int],
        local_nbytes: int,
    ) -> None:
        self.function, self.spaces, self.symbols = function, spaces, symbols
        self.shape, self.index = threads, index
        self.count = int(np.prod(threads))
        lanes = -(-self.count // WARP) * WARP
        self.lanes = np.arange(lanes)
        self.alive = self.lanes < self.count
        self.mask, self.place = self.alive, np.zeros(lanes, np.int64)
        self.barrier = np.full(lanes, NO_BARRIER)
        self.parked = np.zeros(lanes, bool)
        self.local_nbytes = local_nbytes
        self.copies: list = []  # asynchronous ones that have not arrived
        self.committed = np.zeros(lanes, np.int64)
        self._special = _special_registers(self.lanes, threads, blocks, index)
        self._registers = {
            name: np.zeros(lanes, bool) if kind == "pred" else np.full(lanes, (1 << 64) - 1, np.uint64).astype(f"u{n}")
            for name, kind in function.registers.items()
            for n in (0 if kind == "pred" else nbytes_of(kind),)
        }
        self._literals: dict[tuple[str, str], np.ndarray] = {}

    # --- operands -----------------------------------------------------------------------------------------------------
    def read(self, operand: Operand, name: str) -> np.ndarray:
        """Return an operand as a type, of each lane."""
        if isinstance(operand, Register):
            found = self._registers if operand.type != "special" else self._special
            if operand.name not in found:
                raise PtxError(f"the register {operand.name} is unknown")
            return typed(found[operand.name], name)
        if isinstance(operand, Literal):
            return self._literal(operand.text, name)
        if isinstance(operand, Not):
            return ~self.read(operand.of, name)
        if isinstance(operand, Symbol):
            address = np.full(self.lanes.size, self.address_of(operand.name), np.uint64)
            return typed(address, name)
        raise PtxError(f"{operand} is no value")

    def _literal(self, text: str, name: str) -> np.ndarray:
        key = text, name
        if key not in self._literals:
            bits = literal(text, name)
            kind = np.dtype(bool) if name == "pred" else np.dtype(f"u{nbytes_of(name)}")
            self._literals[key] = typed(np.full(self.lanes.size, bits, kind), name)
        return self._literals[key]

    def address_of(self, symbol: str) -> int:
        if symbol not in self.symbols:
            raise PtxError(f"the symbol {symbol} is unknown")
        return self.symbols[symbol]

    def write(self, operand: Operand, values: np.ndarray, name: str) -> None:
        """Set a register, in the threads that execute the instruction."""
        if not isinstance(operand, Register):
            if operand == Symbol("_"):
                return
            raise PtxError(f"{operand} is no register")
        old = self._registers[operand.name]
        new = values if name == "pred" else bits_of(values, name, old.dtype.itemsize)
        self._registers[operand.name] = np.where(self.mask, new, old)

    def fail(self, found: np.ndarray, what: str, addresses: np.ndarray | None = None) -> None:
        """Raise an error for the first thread of those in which something is wrong, if any."""
        lanes = np.flatnonzero(found & self.mask)
        if lanes.size:
            where = "" if addresses is None else f", address {int(addresses[lanes[0]]):#x}"
            raise PtxError(f"{what} in {self.thread(int(lanes[0]))}{where}")

    def thread(self, lane: int) -> str:
        x, y, _ = self.shape
        return f"thread ({lane % x}, {lane // x % y}, {lane // (x * y)}) of block {self.index}"

    # --- memory -------------------------------------------------------------------------------------------------------
    def locate(self, address: Address) -> np.ndarray:
        """Return the addresses of an operand: generic ones, or in the state space that the instruction names."""
        width = "u32" if isinstance(address.base, Register) and address.base.type.endswith("32") else "u64"
        return self.read(address.base, width).astype(np.int64) + address.offset

    def space_of(self, addresses: np.ndarray, space: str) -> tuple[str, np.ndarray]:
        """Return the space of generic addresses, and the addresses in it. All threads must agree on the space."""
        if space:
            return space, addresses
        active = addresses[self.mask]
        for name, base in (("param", PARAM_BASE), ("local", LOCAL_BASE), ("shared", SHARED_BASE)):
            inside = active >= base
            if inside.all():
                return name, addresses - base
            if inside.any():
                raise PtxError("threads access several state spaces at once")
        return "global", addresses

    def checked(self, addresses: np.ndarray, space: str, nbytes: int) -> tuple[Memory, np.ndarray]:
        """Return the memory and the place in it of each lane; those of inactive lanes are anywhere inside.

        Raises: PtxError naming the thread and the address that is misaligned or out of bounds.
        """
        memory = self.spaces[space]
        self.fail(addresses % nbytes != 0, f"a misaligned access of {nbytes} bytes in {space} memory", addresses)
        if space == "local":
            outside = (addresses < 0) | (addresses + nbytes > self.local_nbytes)
            places = memory.base + self.lanes * (-(-self.local_nbytes // 16) * 16) + addresses
        else:
            outside, places = memory.outside(addresses, nbytes), addresses
        self.fail(outside, f"an access of {nbytes} bytes out of bounds of {space} memory", addresses)
        inside = places[np.argmax(self.mask)]
        return memory, np.where(self.mask, places, inside)

    # --- control ------------------------------------------------------------------------------------------------------
    def run(
        self, handlers: dict[str, Handler], synchronizing: Callable[[Block, Instruction], np.ndarray | None]
    ) -> None:
        """Execute until every thread has ended. Raises: PtxError naming the instruction."""
        steps = 0
        while self.alive.any():
            ready = self.alive & (self.barrier == NO_BARRIER) & ~self.parked
            if not ready.any():
                self._raise_deadlock()
            self._go_on(int(self.place[ready].min()), handlers, synchronizing)
            steps += 1
            if steps > MOST_STEPS:
                raise PtxError(f"the kernel does not end: {self.standing()}")

    def _go_on(self, place: int, handlers: dict[str, Handler], synchronizing: Callable) -> None:
        """Execute the threads at a place up to a branch, or to where others stand."""
        running = self.alive & (self.barrier == NO_BARRIER)
        group = running & (self.place == place)
        self.parked &= ~group
        others = self.place[running & (self.place > place)]
        limit = int(others.min()) if others.size else len(self.function.instructions)
        code = self.function.instructions
        moved = False
        while place < limit and not moved:
            it = code[place]
            try:
                self.mask = group if it.guard is None else group & self.read(it.guard, "pred")
                if (here := synchronizing(self, it)) is not None:
                    waiting = self.mask & ~here
                    self.parked |= waiting
                    group, self.mask = group & ~waiting, self.mask & here
                    if not group.any():
                        return
                self.place[group] = place + 1
                if self.mask.any():
                    self._handler(it, handlers)(self, it)
            except PtxError as error:
                raise PtxError(f"line {it.line}: `{it.text}`: {error}") from error
            moved = it.opcode in ("bra", "ret", "exit", "bar", "barrier")
            place += 1
        if place == len(code) and not moved:
            self.alive &= ~group

    def _handler(self, it: Instruction, handlers: dict[str, Handler]) -> Handler:
        if it.opcode not in handlers:
            raise PtxError("the instruction is unknown")
        return handlers[it.opcode]

    def warp_members(self) -> np.ndarray:
        """Return of each lane whether all living threads of its warp execute the instruction."""
        missing = (self.alive & ~self.mask).reshape(-1, WARP).any(1)
        return np.repeat(~missing, WARP)

    def release(self) -> None:
        """Let go on who waits at a barrier that all living threads have reached."""
        for number in np.unique(self.barrier[self.barrier != NO_BARRIER]):
            waiting = self.barrier == number
            if not (self.alive & ~waiting).any():
                self.barrier[waiting] = NO_BARRIER

    def standing(self) -> str:
        """Return where the living threads stand: one of each place."""
        places, lanes = np.unique(np.where(self.alive, self.place, -1), return_index=True)
        code = self.function.instructions
        found = [(int(p), int(lane)) for p, lane in zip(places, lanes, strict=True) if p >= 0]
        return "; ".join(f"{self.thread(lane)} at line {code[min(p, len(code) - 1)].line}" for p, lane in found)

    def _raise_deadlock(self) -> None:
        raise PtxError(
            f"threads wait for each other for ever (a barrier or warp that is not reached by all): {self.standing()}"
        )


def _special_registers(
    lanes: np.ndarray, threads: Sequence[int], blocks: Sequence[int], index: Sequence[int]
) -> dict[str, np.ndarray]:
    x, y, _ = threads
    lane = lanes % WARP
    values = {
        "%laneid": lane,
        "%warpid": lanes // WARP,
        "%nwarpid": lanes * 0 + lanes.size // WARP,
        "%lanemask_eq": 1 << lane,
        "%lanemask_lt": (1 << lane) - 1,
        "%lanemask_le": (2 << lane) - 1,
        "%lanemask_gt": 0xFFFFFFFF ^ ((2 << lane) - 1),
        "%lanemask_ge": 0xFFFFFFFF ^ ((1 << lane) - 1),
    }
    tids = (lanes % x, lanes // x % y, lanes // (x * y))
    for axis, name in enumerate("xyz"):
        values[f"%tid.{name}"] = tids[axis]
        for register, sizes in (("ntid", threads), ("nctaid", blocks), ("ctaid", index)):
            values[f"%{register}.{name}"] = np.full(lanes.size, sizes[axis])
    return {name: value.astype(np.uint32) for name, value in values.items()}


def parts_of(operand: Operand) -> tuple[Operand, ...]:
    """Return the registers of a vector, or the only one."""
    return operand.parts if isinstance(operand, Vector) else (operand,)
