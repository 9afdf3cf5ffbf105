"""How the records of a sort lie in memory: of a key and the place it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard import dtypes

PLACE_BITS = 32
DIGITS = 256  # of a byte
# Many records are first parted by as many leading bits of the range of keys.
PART_BITS = 11


@dataclass(frozen=True)
class RecordLayout:
    """Describe a record: a word with the key in its upper half and the place in the lower one, which counts to 2^32;
    or, where the key takes 64 bits, the words of all keys, and after these the words of all places. Where only values
    are wanted, records have no place, and the word is the key, in 32 or 64 bits.

    dtype: of the values that are sorted. Their keys have as many bits.
    """

    dtype: str
    has_places: bool = True

    @property
    def key_bits(self) -> int:
        return 8 * dtypes.itemsize(self.dtype)

    @property
    def words(self) -> int:
        return 1 if self.key_bits <= PLACE_BITS or not self.has_places else 2

    @property
    def word_bits(self) -> int:
        return 64 if self.has_places or self.key_bits == 64 else 32

    @property
    def digit_shifts(self) -> tuple[int, ...]:
        """Where each byte of a key lies in the first word of a record, the least significant first."""
        start = PLACE_BITS if self.words == 1 else 0
        return tuple(start + bit for bit in range(0, self.key_bits, 8))

    @property
    def counters(self) -> int:
        """How many counters of 64 bits a sort by digits needs: those of parts lie behind those of digits."""
        return DIGITS * len(self.digit_shifts) + (1 << PART_BITS)
