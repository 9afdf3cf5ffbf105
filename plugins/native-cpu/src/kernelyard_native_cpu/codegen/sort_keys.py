"""Keys of a sort: unsigned integers in the order of the values, and records of a key and the place it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard import dtypes
from kernelyard_llvm.emitter import FunctionEmitter
from kernelyard_llvm.values import BITS, Operand, Value, aligned, int_literal
from kernelyard_native_cpu.codegen.compress import LEAST_VECTOR_BITS, store_compressed
from kernelyard_native_cpu.codegen.types import compute_type, decode, encode, storage_type

_PLACE_BITS = 32
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


def key_type(dtype: str) -> str:
    """Return the LLVM type of a dtype's keys."""
    return f"i{BITS[storage_type(dtype)]}" if compute_type(dtype) != "i1" else "i8"


@dataclass(frozen=True)
class RecordLayout:
    """How records lie in memory: a word with the key in its upper half and the place in the lower one, which counts to
    2^32; or, where the key takes 64 bits, the words of all keys, and `capacity` words on those of all places. Where
    only values are wanted, records have no place, and the word is the key, in 32 or 64 bits.
    """

    key_type: str
    has_places: bool = True

    @property
    def words(self) -> int:
        return 1 if BITS[self.key_type] <= _PLACE_BITS or not self.has_places else 2

    @property
    def word_type(self) -> str:
        """The LLVM type of a word."""
        return "i64" if self.has_places or self.key_type == "i64" else "i32"

    @property
    def digit_shifts(self) -> tuple[int, ...]:
        """Where each byte of a key lies in the first word of a record, the least significant first."""
        start = _PLACE_BITS if self.words == 1 else 0
        return tuple(start + bit for bit in range(0, BITS[self.key_type], 8))

    def record(self, e: FunctionEmitter, key: Value, place: Value) -> Record:
        """Return the words of a record, or of a vector of records."""
        if not self.has_places:
            return [e.convert("zext", key, self.word_type)]
        if self.words == 2:
            return e.align_lanes(key, place)
        return [e.binary("or", e.binary("shl", e.convert("zext", key, "i64"), _PLACE_BITS), place)]

    def key(self, e: FunctionEmitter, record: Record) -> Value:
        """Return the key of a record."""
        if not self.has_places:
            return e.convert("trunc", record[0], self.key_type)
        if self.words == 2:
            return record[0]
        return e.convert("trunc", e.binary("lshr", record[0], _PLACE_BITS), self.key_type)

    def place(self, e: FunctionEmitter, record: Record) -> Value:
        """Return the place of a record."""
        return record[1] if self.words == 2 else e.binary("and", record[0], (1 << _PLACE_BITS) - 1)

    def load(self, e: FunctionEmitter, start: Value, capacity: Value, at: Operand, lanes: int = 1) -> Record:
        """Return the record, or the records, at a position of those that begin at an address."""
        return [e.load(word, lanes, type_=self.word_type) for word in self._words_at(e, start, capacity, at)]

    def store(self, e: FunctionEmitter, start: Value, capacity: Value, at: Operand, record: Record) -> None:
        """Write a record, or records."""
        for word, value in zip(self._words_at(e, start, capacity, at), record, strict=True):
            e.store(value, word)

    def store_chosen(
        self,
        e: FunctionEmitter,
        start: Value,
        capacity: Value,
        at: Value,
        record: Record,
        mask: Value,
        vector_bits: int,
    ) -> None:
        """Write the records of the lanes that a mask chooses, side by side; as many behind them are lost."""
        for word, value in zip(self._words_at(e, start, capacity, at), record, strict=True):
            if vector_bits >= LEAST_VECTOR_BITS:
                store_compressed(e, value, mask, word, vector_bits)
                continue
            name = f"llvm.masked.compressstore.v{value.lanes}{self.word_type}"
            e.line(e.call(name, "void", value, aligned(word, self.word_type), mask))

    def _words_at(self, e: FunctionEmitter, start: Value, capacity: Value, at: Operand) -> list[Value]:
        first = e.element(start, at, self.word_type)
        return [first] if self.words == 1 else [first, e.element(first, capacity, self.word_type)]
