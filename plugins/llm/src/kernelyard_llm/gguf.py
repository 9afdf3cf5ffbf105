"""Read GGUF files: metadata, and tensors as they lie in the mapped file.

Layout (ggml's docs/gguf.md, versions 2 and 3, little-endian): "GGUF", a version, the counts of tensors and of entries
of metadata, these entries, then name, sizes, type and offset of each tensor, and the aligned data.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelyard_llm.errors import ModelFileError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
# What a file may ask for before it is believed: a damaged one must not make us allocate.
_MOST_TENSORS = 1 << 20
_MOST_ENTRIES = 1 << 16
_MOST_AXES = 4
_MOST_NESTING = 4

_STRING, _ARRAY, _BOOL = 8, 9, 7
_INTEGERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 10: "<u8", 11: "<i8"}
_NUMBERS = {**_INTEGERS, 6: "<f4", 12: "<f8", _BOOL: "<u1"}


class BlockType(NamedTuple):
    """How tensors are stored: blocks of `elements` numbers in `nbytes`."""

    name: str
    elements: int
    nbytes: int


BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    20: BlockType("IQ4_NL", 32, 18),
    23: BlockType("IQ4_XS", 256, 136),
    30: BlockType("BF16", 1, 2),
}


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor of a file. shape: the slowest axis first, as NumPy has it. data: its bytes (rows, bytes), mapped."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    data: np.ndarray


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """Hold the metadata and tensors of a GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Read a GGUF file; tensors stay in the mapped file until they are used.

    Raises: ModelFileError for a malformed file.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise ModelFileError("a GGUF file cannot be read", where=str(path), found=str(error)) from error
    return _Reader(data, path).file()


class _Reader:
    """Walks through the bytes; every step is checked against what is left."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def file(self) -> GGUFFile:
        if self._take(4) != _MAGIC:
            raise self._create_error("this is no GGUF file", found=bytes(self.data[:4]), expected=_MAGIC)
        version = self._number("<I")
        if version not in _VERSIONS:
            raise self._create_error("this version of GGUF is not supported", found=version, expected="2 or 3")
        tensors = self._count("tensors", _MOST_TENSORS)
        entries = self._count("entries", _MOST_ENTRIES)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._string()
            metadata[key] = self._value(self._number("<I"), 0)
        infos = [self._info() for _ in range(tensors)]
        alignment = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._create_error("the alignment is no power of two", found=alignment)
        start = -(-self.at // alignment) * alignment
        stored = {name: self._tensor(name, shape, kind, start + offset) for name, shape, kind, offset in infos}
        if len(stored) < len(infos):
            raise self._create_error("two tensors have one name")
        return GGUFFile(self.path, metadata, stored)

    def _info(self) -> tuple[str, tuple[int, ...], BlockType, int]:
        name = self._string()
        rank = self._number("<I")
        if not 1 <= rank <= _MOST_AXES:
            raise self._create_error(f"the tensor {name!r} has an impossible rank", found=rank, expected="1 to 4")
        shape = tuple(self._number("<Q") for _ in range(rank))[::-1]
        number, offset = self._number("<I"), self._number("<Q")
        kind = BLOCK_TYPES.get(number)
        if kind is None:
            known = ", ".join(each.name for each in BLOCK_TYPES.values())
            raise self._create_error(
                f"the tensor {name!r} has an unknown block type", found=f"type {number}", expected=known
            )
        return name, shape, kind, offset

    def _tensor(self, name: str, shape: tuple[int, ...], kind: BlockType, start: int) -> StoredTensor:
        *outer, row = shape
        rows = 1
        for size in outer:
            rows *= size
        if row < 1 or rows < 1 or row % kind.elements:
            raise self._create_error(f"the tensor {name!r} has no whole blocks", found=f"{shape}, {kind.name}")
        width = row // kind.elements * kind.nbytes
        if rows * width > len(self.data) - start:
            raise self._create_error(f"the file ends before the tensor {name!r}", found=f"{len(self.data)} bytes")
        flat = np.frombuffer(self.data, np.uint8, rows * width, start)
        return StoredTensor(name, shape, kind, flat.reshape(rows, width))

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _NUMBERS:
            number = np.frombuffer(self._take(np.dtype(_NUMBERS[kind]).itemsize), _NUMBERS[kind])[0].item()
            return bool(number) if kind == _BOOL else number
        if kind != _ARRAY or depth == _MOST_NESTING:
            raise self._create_error("a value of the metadata has an unknown type", found=kind)
        of = self._number("<I")
        if of in _NUMBERS:
            dtype = np.dtype(_NUMBERS[of])
            count = self._count("numbers", self._count_remaining() // dtype.itemsize)
            return np.frombuffer(self._take(count * dtype.itemsize), dtype)
        count = self._count("values", self._count_remaining())
        return [self._value(of, depth + 1) for _ in range(count)]

    def _string(self) -> str:
        length = self._number("<Q")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._create_error("a string is not UTF-8", found=str(error)) from error

    def _count(self, what: str, most: int) -> int:
        count = self._number("<Q")
        if count > most:
            raise self._create_error(f"the number of {what} is impossible", found=count, expected=f"at most {most}")
        return count

    def _number(self, layout: str) -> int:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _count_remaining(self) -> int:
        return len(self.data) - self.at

    def _take(self, count: int) -> bytes:
        if count > self._count_remaining():
            raise self._create_error("the file ends too early", found=f"{len(self.data)} bytes")
        self.at += count
        return self.data[self.at - count : self.at]

    def _create_error(self, message: str, **facts: object) -> ModelFileError:
        found, expected = facts.get("found"), facts.get("expected")
        return ModelFileError(
            message,
            where=f"{self.path}, byte {self.at}",
            found=found,
            expected=expected,
            hint="download the file again, or convert the model again",
        )
