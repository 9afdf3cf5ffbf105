"""Buffers in memory: where each starts, and loads and stores of scalars and vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Affine, Buffer, Expr, Load, offset_of
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import BITS, Value, int_literal, mangle_type, state_alignment, vector_type
from kernelyard_native_cpu.codegen.types import storage_type


class DimTable:
    """The numbers a kernel gets at run time, in order: `reserved` of the caller's, then the dims it asks for."""

    def __init__(self, reserved: int) -> None:
        self.reserved = reserved
        self.dims: list[Dim] = []
        self._index: dict[Dim, int] = {}

    def index(self, dim: Dim) -> int:
        if dim not in self._index:
            self._index[dim] = self.reserved + len(self.dims)
            self.dims.append(dim)
        return self._index[dim]


class Memory:
    """The buffers of one generated function: their pointers, strides and loads.

    pointers: the start of each buffer. private: how many leading indices do not count, for buffers kept per row.
    packed: what is read from a panel instead.
    written: buffers that this function writes. Loads of others may be moved anywhere; loads of what an earlier stage
    wrote stay inside of the loop that runs the stages; loads of what this stage writes stay where they are.
    streamed: buffers whose whole vectors are stored past the caches, so many lanes at once.
    """

    def __init__(
        self,
        emitter: FunctionEmitter,
        table: DimTable,
        pointers: Mapping[Buffer, Value],
        written: frozenset[Buffer],
        private: Mapping[Buffer, int],
        has_half: bool,
    ) -> None:
        self.emitter = emitter
        self.table = table
        self.pointers = pointers
        self.written = written
        self.private = private
        self.has_half = has_half
        self.packed: dict[Expr, Load] = {}
        self.streamed: Mapping[Buffer, int] = {}
        self._offsets: dict[tuple[Buffer, tuple[Expr, ...]], Affine] = {}
        self._stage = 0
        self._stage_depth = 0
        self._stage_writes: frozenset[Buffer] = frozenset()

    def begin_stage(self, writes: frozenset[Buffer]) -> None:
        """Tell which buffers the code that follows writes."""
        self._stage += 1
        self._stage_depth = self.emitter.depth
        self._stage_writes = writes

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Affine:
        """Return the flat offset of an element; leading indices of private buffers do not count."""
        key = (buffer, indices)
        if key not in self._offsets:
            self._offsets[key] = offset_of(buffer, indices, self.private.get(buffer, 0))
        return self._offsets[key]

    def dim(self, dim: Dim) -> Value:
        """Return a dim: a literal, or a number that the kernel is given."""
        if isinstance(dim, int):
            return int_literal(dim)
        return self.number(self.table.index(dim))

    def number(self, index: int) -> Value:
        """Return an entry of the table of numbers."""
        e = self.emitter
        place = e.element(Value("%dims", "ptr"), index, "i64")
        return e.pure(f"{e.load_text(place, 'i64', 1)}, !invariant.load !0", "i64", 1, [place])

    def _address(self, buffer: Buffer, offset: Value) -> Value:
        return self.emitter.element(self.pointers[buffer], offset, storage_type(buffer.dtype))

    def load(self, buffer: Buffer, offset: Value, lanes: int = 1, mask: Value | None = None) -> Value:
        """Load `lanes` elements from an offset on; masked-out lanes are not read."""
        e, type_, place = self.emitter, storage_type(buffer.dtype), self._address(buffer, offset)
        if mask is None or lanes == 1:
            return self._read(buffer, e.load_text(place, type_, lanes), type_, lanes, [place])
        mask = e.broadcast(mask, lanes)
        text = e.load_text(place, type_, lanes, mask)
        return self._read(buffer, text, type_, lanes, [place, mask], conditional=True)

    def load_word(self, buffer: Buffer, offset: Value) -> Value:
        """Return four bytes from an offset on as an int32."""
        place = self._address(buffer, offset)
        text = f"load i32, ptr {place.ref}, align 1"
        return self._read(buffer, text, "i32", 1, [place])

    def load_reversed(self, buffer: Buffer, offset: Value, lanes: int) -> Value:
        """Return the elements at offset, offset - 1, ..."""
        start = self.emitter.sub(offset, lanes - 1)
        forward = self.load(buffer, start, lanes)
        return self.emitter.shuffle(forward, forward, list(reversed(range(lanes))))

    def load_strided(self, buffer: Buffer, offset: Value, step: int, lanes: int, used: Value | None = None) -> Value:
        """Return the elements at offset, offset + step, ...: whole vectors are loaded, and the lanes wanted are
        shuffled out.

        Nothing beyond the last lane's element is read: the last vector ends with it, or, where only `used` lanes are
        wanted, the vectors are masked.
        """
        e, last = self.emitter, (lanes - 1) * step
        starts = [k * lanes if used is not None else min(k * lanes, last - (lanes - 1)) for k in range(step)]
        parts: list[Value] = []
        for start in starts:
            mask = None
            if used is not None:  # of (used - 1) * step + 1 elements, those from `start` on
                mask = e.lanes_below(lanes, e.add(e.mul(used, step), 1 - step - start))
            parts.append(self.load(buffer, e.add(offset, start), lanes, mask))
        result = parts[0]
        for k in range(1, step):
            order = [self._lane(lane * step, lane, starts, k, lanes) for lane in range(lanes)]
            result = self.emitter.shuffle(result, parts[k], order)
        return result

    @staticmethod
    def _lane(element: int, lane: int, starts: list[int], k: int, lanes: int) -> int:
        """Return the shuffle index of a lane when vector `k` is merged: from it, or from the vectors merged before."""
        if k * lanes <= element < (k + 1) * lanes:
            return lanes + element - starts[k]
        # The first merge takes lanes of the first vector from their places, later ones find them where they belong.
        return element if k == 1 and element < lanes else lane

    def gather(self, buffer: Buffer, offsets: Value, lanes: int, mask: Value | None) -> Value:
        """Return an element from each lane's own offset."""
        e = self.emitter
        type_, places = storage_type(buffer.dtype), self._address(buffer, e.broadcast(offsets, lanes))
        mask = e.broadcast(mask or int_literal(1, "i1"), lanes)
        name = f"llvm.masked.gather.{mangle_type(type_, lanes)}.v{lanes}p0"
        zeros = Value("zeroinitializer", type_, lanes)
        call = e.call(name, vector_type(type_, lanes), state_alignment(places, type_), mask, zeros)
        return self._read(buffer, call, type_, lanes, [places, mask], conditional=True)

    def _read(
        self, buffer: Buffer, text: str, type_: str, lanes: int, operands: list[Value], conditional: bool = False
    ) -> Value:
        if buffer in self._stage_writes:
            return self.emitter.here(text, type_, lanes)
        floor = self.emitter.guard_depth  # a mask tells of its lanes, not of the conditions around it
        if buffer in self.written:
            floor, key = max(floor, self._stage_depth), f"{text} ; stage {self._stage}"
            return self.emitter.pure(text, type_, lanes, operands, floor, key)
        invariant = "" if conditional else ", !invariant.load !0"
        return self.emitter.pure(text + invariant, type_, lanes, operands, floor)

    def prefetch(self, buffer: Buffer, offset: Value) -> None:
        """Ask for the cache line of an element, which need not exist."""
        self.emitter.prefetch(self._address(buffer, offset))

    def store(self, buffer: Buffer, offset: Value, value: Value, mask: Value | None = None) -> None:
        """Write an element, or a vector of neighbours; lanes that the mask excludes are not written."""
        place = self._address(buffer, offset)
        if mask is None and value.lanes > 1 and buffer in self.streamed:
            self._stream(value, place, buffer)
        else:
            self.emitter.store(value, place, mask)

    @contextmanager
    def caching(self) -> Iterator[None]:
        """Store what follows in the caches, whatever its size: it is read again at once."""
        streamed, self.streamed = self.streamed, {}
        yield
        self.streamed = streamed

    def _stream(self, value: Value, place: Value, buffer: Buffer) -> None:
        """Store a vector past the caches, where its parts are aligned: others would fault."""
        e, lanes = self.emitter, min(self.streamed[buffer], value.lanes)
        nbytes = lanes * BITS[value.type] // 8
        below = e.binary("and", e.convert("ptrtoint", place, "i64"), nbytes - 1)

        def stream() -> list[Value]:
            for first in range(0, value.lanes, lanes):
                part = value if lanes == value.lanes else e.shuffle(value, value, range(first, first + lanes))
                there = e.element(place, first, value.type)
                e.line(f"store {part.typed}, ptr {there.ref}, align {nbytes}, !nontemporal !1")
            return []

        e.branch(e.compare("eq", below, 0), stream, lambda: e.store(value, place) or [])

    def store_reversed(self, buffer: Buffer, offset: Value, value: Value) -> None:
        """Write the lanes to offset, offset - 1, ..."""
        turned = self.emitter.shuffle(value, value, list(reversed(range(value.lanes))))
        self.store(buffer, self.emitter.sub(offset, value.lanes - 1), turned)

    def scatter(self, buffer: Buffer, offsets: Value, values: Value, mask: Value | None) -> None:
        """Write each lane to its own offset."""
        e = self.emitter
        if mask is None:
            for lane in range(values.lanes):
                self.store(buffer, e.extract(offsets, lane), e.extract(values, lane))
            return
        name = f"llvm.masked.scatter.{mangle_type(values.type, values.lanes)}.v{values.lanes}p0"
        e.line(e.call(name, "void", values, state_alignment(self._address(buffer, offsets), values.type), mask))
