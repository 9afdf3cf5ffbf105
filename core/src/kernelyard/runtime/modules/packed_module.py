"""The bytes of a module that has compiled code: a magic number or none, the length of a header, the header, the code.

The length has 8 bytes, little-endian; the header is JSON and has a schema; the code is one part or several.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kernelyard.errors import ArtifactVersionError
from kernelyard.runtime.abi.spec import Fields, corrupted, read_json, write_json

_LENGTH = struct.Struct("<Q")


def pack_module(magic: bytes, schema: int, facts: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
    """Return the bytes of a module: `facts` are its header, `parts` its code."""
    header = write_json({"schema": schema, **facts})
    return b"".join((magic, _LENGTH.pack(len(header)), header, *parts))


def unpack_module(data: bytes, magic: bytes, schema: int, kind: str) -> tuple[Fields, memoryview]:
    """Return the header and the code of what `pack_module` made.

    Raises: ArtifactCorruptedError, ArtifactVersionError for another schema.
    """
    view = memoryview(data)
    start = len(magic) + _LENGTH.size
    if len(view) < start or bytes(view[: len(magic)]) != magic:
        raise corrupted(kind, bytes(view[:16]), f"code of {kind}")
    (length,) = _LENGTH.unpack(view[len(magic) : start])
    if length > len(view) - start:
        raise corrupted(kind, f"a header of {length} bytes", f"at most {len(view) - start}")
    fields = Fields(read_json(view[start : start + length], kind), kind)
    found = fields.integer("schema")
    if found != schema:
        raise ArtifactVersionError(
            "compiled code of another schema",
            where=kind,
            found=found,
            expected=schema,
            hint="install kernelyard and plugins of the version that compiled it, or compile the model again",
        )
    return fields, view[start + length :]


def split_code(code: memoryview, sizes: Sequence[int], kind: str) -> list[bytes]:
    """Return the parts of the code by their sizes in bytes. Raises: ArtifactCorruptedError where they are not all."""
    if sum(sizes) != len(code):
        raise corrupted(kind, f"{len(code)} bytes of code", f"{sum(sizes)} bytes")
    parts: list[bytes] = []
    for size in sizes:
        parts.append(bytes(code[:size]))
        code = code[size:]
    return parts
