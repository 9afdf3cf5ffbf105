"""Buffers in memory: where each starts, and loads and stores of scalars and vectors."""

from __future__ import annotations

from collections.abc import Mapping

from kernelyard import dtypes
from kernelyard.dims import Dim
from kernelyard.plugins.codegen_api import Affine, Buffer, Expr, Load, offset_of
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import Value, int_literal, literal_int, vector_type
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
    """What one generated function knows of its buffers.

    pointers: the start of each buffer. private: how many leading indices do not count, for buffers kept per row.
    packed: what is read from a panel instead.
    written: buffers that this function writes. Loads of others may be moved anywhere; loads of what an earlier stage
    wrote stay inside of the loop that runs the stages; loads of what this stage writes stay where they are.
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
        """The flat offset of an element; leading indices of private buffers do not count."""
        key = (buffer, indices)
        if key not in self._offsets:
            self._offsets[key] = offset_of(buffer, indices, self.private.get(buffer, 0))
        return self._offsets[key]

    def dim(self, dim: Dim) -> Value:
        """A dim: a literal, or a number that the kernel is given."""
        if isinstance(dim, int):
            return int_literal(dim)
        return self.number(self.table.index(dim))

    def number(self, index: int) -> Value:
        """An entry of the table of numbers."""
        e = self.emitter
        place = e.pure(f"getelementptr i64, ptr %dims, i64 {index}", "ptr", 1, [])
        return e.pure(f"load i64, ptr {place.ref}, align 8, !invariant.load !0", "i64", 1, [place])

    def _address(self, buffer: Buffer, offset: Value) -> Value:
        base = self.pointers[buffer]
        if offset.ref == "0":
            return base
        text = f"getelementptr {storage_type(buffer.dtype)}, ptr {base.ref}, {offset.typed}"
        return self.emitter.pure(text, "ptr", offset.lanes, [base, offset])

    def load(self, buffer: Buffer, offset: Value, lanes: int = 1, mask: Value | None = None) -> Value:
        """`lanes` elements from an offset on; lanes that the mask excludes are not read."""
        type_, align = storage_type(buffer.dtype), dtypes.itemsize(buffer.dtype)
        place = self._address(buffer, offset)
        text = vector_type(type_, lanes)
        if mask is None or lanes == 1:
            return self._read(buffer, f"load {text}, ptr {place.ref}, align {align}", type_, lanes, [place])
        mask = self.emitter.broadcast(mask, lanes)
        name = f"llvm.masked.load.v{lanes}{_suffix(type_)}.p0"
        self.emitter.declarations.add(f"declare {text} @{name}(ptr, {mask.text}, {text})")
        call = f"call {text} @{name}(ptr align {align} {place.ref}, {mask.typed}, {text} zeroinitializer)"
        return self._read(buffer, call, type_, lanes, [place, mask], conditional=True)

    def load_reversed(self, buffer: Buffer, offset: Value, lanes: int) -> Value:
        """The elements at offset, offset - 1, ..."""
        start = self.emitter.binary("sub", offset, int_literal(lanes - 1))
        forward = self.load(buffer, start, lanes)
        return self.emitter.shuffle(forward, forward, list(reversed(range(lanes))))

    def lanes_below(self, count: int, used: Value) -> Value:
        """A mask of the first `used` lanes."""
        known = literal_int(used)
        if known is not None:
            return Value(f"<{', '.join(f'i1 {str(n < known).lower()}' for n in range(count))}>", "i1", count)
        return self.emitter.compare("slt", iota(count), used)

    def load_strided(self, buffer: Buffer, offset: Value, step: int, lanes: int, used: Value | None = None) -> Value:
        """The elements at offset, offset + step, ...: whole vectors are loaded, and the lanes wanted are shuffled out.

        Nothing beyond the last lane's element is read: the last vector ends with it, or, where only `used` lanes are
        wanted, the vectors are masked.
        """
        e, last = self.emitter, (lanes - 1) * step
        starts = [k * lanes if used is not None else min(k * lanes, last - (lanes - 1)) for k in range(step)]
        parts: list[Value] = []
        for start in starts:
            mask = None
            if used is not None:  # of (used - 1) * step + 1 elements, those from `start` on
                mask = self.lanes_below(lanes, e.add(e.mul(used, int_literal(step)), int_literal(1 - step - start)))
            parts.append(self.load(buffer, e.binary("add", offset, int_literal(start)), lanes, mask))
        result = parts[0]
        for k in range(1, step):
            order = [self._lane(lane * step, lane, starts, k, lanes) for lane in range(lanes)]
            result = self.emitter.shuffle(result, parts[k], order)
        return result

    @staticmethod
    def _lane(element: int, lane: int, starts: list[int], k: int, lanes: int) -> int:
        """Where a lane comes from when vector `k` is merged: from it, or from what was merged before."""
        if k * lanes <= element < (k + 1) * lanes:
            return lanes + element - starts[k]
        # The first merge takes lanes of the first vector from their places, later ones find them where they belong.
        return element if k == 1 and element < lanes else lane

    def gather(self, buffer: Buffer, offsets: Value, lanes: int, mask: Value | None) -> Value:
        """An element from each lane's own offset."""
        e = self.emitter
        type_, align = storage_type(buffer.dtype), dtypes.itemsize(buffer.dtype)
        places = self._address(buffer, e.broadcast(offsets, lanes))
        mask = e.broadcast(mask or int_literal(1, "i1"), lanes)
        text = vector_type(type_, lanes)
        name = f"llvm.masked.gather.v{lanes}{_suffix(type_)}.v{lanes}p0"
        e.declarations.add(f"declare {text} @{name}(<{lanes} x ptr>, {mask.text}, {text})")
        call = f"call {text} @{name}(<{lanes} x ptr> align {align} {places.ref}, {mask.typed}, {text} zeroinitializer)"
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
        place = self._address(buffer, offset)
        self.emitter.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.emitter.line(f"call void @llvm.prefetch.p0(ptr {place.ref}, i32 0, i32 3, i32 1)")

    def store(self, buffer: Buffer, offset: Value, value: Value, mask: Value | None = None) -> None:
        """Write an element, or a vector of neighbours; lanes that the mask excludes are not written."""
        place, align = self._address(buffer, offset), dtypes.itemsize(buffer.dtype)
        if mask is None or value.lanes == 1:
            self.emitter.line(f"store {value.typed}, ptr {place.ref}, align {align}")
            return
        name = f"llvm.masked.store.v{value.lanes}{_suffix(value.type)}.p0"
        self.emitter.declarations.add(f"declare void @{name}({value.text}, ptr, {mask.text})")
        self.emitter.line(f"call void @{name}({value.typed}, ptr align {align} {place.ref}, {mask.typed})")

    def scatter(self, buffer: Buffer, offsets: Value, values: Value, mask: Value | None) -> None:
        """Write each lane to its own offset."""
        e = self.emitter
        if mask is None:
            for lane in range(values.lanes):
                self.store(buffer, e.extract(offsets, lane), e.extract(values, lane))
            return
        places, align = self._address(buffer, offsets), dtypes.itemsize(buffer.dtype)
        name = f"llvm.masked.scatter.v{values.lanes}{_suffix(values.type)}.v{values.lanes}p0"
        e.declarations.add(f"declare void @{name}({values.text}, {places.text}, {mask.text})")
        e.line(f"call void @{name}({values.typed}, {places.text} align {align} {places.ref}, {mask.typed})")


def _suffix(type_: str) -> str:
    return {"half": "f16", "float": "f32", "double": "f64"}.get(type_, type_)


def iota(count: int) -> Value:
    """0, 1, 2, ... in the lanes."""
    return Value(f"<{', '.join(f'i64 {n}' for n in range(count))}>", "i64", count)
