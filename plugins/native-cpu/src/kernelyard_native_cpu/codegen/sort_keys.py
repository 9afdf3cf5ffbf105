"""Keys of a sort: unsigned integers in the order of the values, and records of a key and the place it comes from."""

from __future__ import annotations

from kernelyard import dtypes
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import BITS, Operand, Value, int_literal, state_alignment
from kernelyard_native_cpu.codegen.compress import store_compressed
from kernelyard_native_cpu.codegen.types import decode, encode, storage_type
from kernelyard_native_cpu.machine import Compression
from kernelyard_native_cpu.schedule.record_layout import PLACE_BITS, RecordLayout

Record = list[Value]


def sort_key(
    e: FunctionEmitter, value: Value, dtype: str, has_half: bool, ties_are_equal: bool = True, *, descending: bool
) -> Value:
    """Return an unsigned integer, as wide as the dtype in memory, that is less where the value comes first.

    All NaN have one key, the greatest, and so have both zeros, if `ties_are_equal`. A float's bits are in order but for
    the sign: negative ones are inverted, and the sign bit of the others is set.
    """
    if dtype == "bool":
        key = e.convert("zext", value, "i8")
    elif dtypes.is_float(dtype):
        key = _float_key(e, value, dtype, has_half, ties_are_equal)
    else:
        key = value if dtype in dtypes.UNSIGNED else e.binary("xor", value, _sign_bit(value.type))
    return e.binary("xor", key, -1) if descending else key


def _float_key(e: FunctionEmitter, value: Value, dtype: str, has_half: bool, ties_are_equal: bool) -> Value:
    number = e.select(e.compare("oeq", value, 0.0), 0.0, value) if ties_are_equal else value
    stored = encode(e, number, dtype, has_half)
    bits = e.convert("bitcast", stored, f"i{BITS[stored.type]}")
    width = BITS[bits.type]
    turned = e.binary("or", e.binary("ashr", bits, width - 1), _sign_bit(bits.type))
    key = e.binary("xor", bits, turned)
    return e.select(e.compare("uno", value, value), int_literal(-1, key.type), key)


def value_of_key(e: FunctionEmitter, key: Value, dtype: str, has_half: bool, *, descending: bool) -> Value:
    """Return a value that has a key."""
    key = e.binary("xor", key, -1) if descending else key
    if dtype == "bool":
        return e.compare("ne", key, 0)
    if not dtypes.is_float(dtype):
        return key if dtype in dtypes.UNSIGNED else e.binary("xor", key, _sign_bit(key.type))
    is_negative = e.compare("sge", key, 0)
    bits = e.binary("xor", key, e.select(is_negative, int_literal(-1, key.type), _sign_bit(key.type)))
    return decode(e, e.convert("bitcast", bits, storage_type(dtype)), dtype, has_half)


def may_come_before(e: FunctionEmitter, value: Value, last: Value, dtype: str, *, descending: bool) -> Value:
    """Return True for a value that comes before another, and perhaps where one of the two is NaN: less work than
    keys.
    """
    direction = "gt" if descending else "lt"
    kind = "u" if dtypes.is_float(dtype) or dtype in (*dtypes.UNSIGNED, "bool") else "s"
    return e.compare(f"{kind}{direction}", value, last)


def _sign_bit(type_: str) -> int:
    return 1 << (BITS[type_] - 1)


class Records:
    """Write the code that reads and writes records; where the key takes 64 bits, places lie `capacity` words on."""

    def __init__(self, e: FunctionEmitter, layout: RecordLayout, capacity: Value) -> None:
        self.e = e
        self.layout = layout
        self.capacity = capacity
        self.word_type, self.key_type = f"i{layout.word_bits}", f"i{layout.key_bits}"

    def record(self, key: Value, place: Value) -> Record:
        """Return the words of a record, or of a vector of records."""
        if not self.layout.has_places:
            return [self.e.convert("zext", key, self.word_type)]
        if self.layout.words == 2:
            return self.e.align_lanes(key, place)
        return [self.e.binary("or", self.e.binary("shl", self.e.convert("zext", key, "i64"), PLACE_BITS), place)]

    def key(self, record: Record) -> Value:
        """Return the key of a record."""
        if not self.layout.has_places:
            return self.e.convert("trunc", record[0], self.key_type)
        if self.layout.words == 2:
            return record[0]
        return self.e.convert("trunc", self.e.binary("lshr", record[0], PLACE_BITS), self.key_type)

    def place(self, record: Record) -> Value:
        """Return the place of a record."""
        return record[1] if self.layout.words == 2 else self.e.binary("and", record[0], (1 << PLACE_BITS) - 1)

    def load(self, start: Value, at: Operand, lanes: int = 1) -> Record:
        """Return the record, or the records, at a position of those that begin at an address."""
        return [self.e.load(word, lanes, type_=self.word_type) for word in self._words_at(start, at)]

    def store(self, start: Value, at: Operand, record: Record) -> None:
        """Write a record, or records."""
        for word, value in zip(self._words_at(start, at), record, strict=True):
            self.e.store(value, word)

    def store_chosen(
        self, start: Value, at: Value, record: Record, mask: Value, compression: Compression | None
    ) -> None:
        """Write the records of the lanes that a mask chooses, side by side; as many behind them are lost."""
        for word, value in zip(self._words_at(start, at), record, strict=True):
            if compression:
                store_compressed(self.e, value, mask, word, compression)
                continue
            name = f"llvm.masked.compressstore.v{value.lanes}{self.word_type}"
            self.e.line(self.e.call(name, "void", value, state_alignment(word, self.word_type), mask))

    def _words_at(self, start: Value, at: Operand) -> list[Value]:
        first = self.e.element(start, at, self.word_type)
        return [first] if self.layout.words == 1 else [first, self.e.element(first, self.capacity, self.word_type)]
