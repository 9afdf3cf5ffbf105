"""Just enough of the ELF format to find a section of a shared library: 64 bits, little-endian.

Source: System V ABI, "Object Files", sections "ELF Header" and "Section Header".
"""

from __future__ import annotations

import struct

import numpy as np

from kernelyard.runtime.abi.spec import corrupted

_CLASS_64_LITTLE = b"\x02\x01"
# From the header: offset of the section headers (at 40), then their size, number, and which one names the others.
_TABLE_OFFSET = struct.Struct("<Q")
_TABLE_SHAPE = struct.Struct("<HHH")
# name, type, flags, address, offset, size
_SECTION = struct.Struct("<IIQQQQ")
_HEADER_NBYTES = 64


def find_section(data: np.ndarray, name: str) -> np.ndarray | None:
    """Return the bytes of the section of that name in an ELF file, None where there is none.

    Raises: ArtifactCorruptedError for a file whose headers point outside of it, or of another ELF class.
    """
    if data.nbytes < _HEADER_NBYTES or data[4:6].tobytes() != _CLASS_64_LITTLE:
        raise corrupted("library", data[:8].tobytes(), "a 64-bit little-endian ELF file")
    (table,) = _TABLE_OFFSET.unpack(data[40:48].tobytes())
    size, count, names_index = _TABLE_SHAPE.unpack(data[58:64].tobytes())
    sections = [_section(data, table + number * size) for number in range(count)]
    if names_index >= count:
        return None
    names = _content(data, *sections[names_index][1:]).tobytes()
    wanted = name.encode() + b"\0"
    for name_offset, offset, nbytes in sections:
        if names[name_offset : name_offset + len(wanted)] == wanted:
            return _content(data, offset, nbytes)
    return None


def _section(data: np.ndarray, place: int) -> tuple[int, int, int]:
    """Offset of the name, offset and size of the content."""
    name, _, _, _, offset, nbytes = _SECTION.unpack(_content(data, place, _SECTION.size).tobytes())
    return name, offset, nbytes


def _content(data: np.ndarray, offset: int, nbytes: int) -> np.ndarray:
    if offset + nbytes > data.nbytes:
        raise corrupted("library", f"bytes {offset} to {offset + nbytes}", f"at most {data.nbytes} bytes")
    return data[offset : offset + nbytes]
