"""Damage behind what a format's own library checks: in one field of a message, in the head of a file, in one member."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

Change = Callable[[bytes], bytes]
ROOM = 8  # bytes of a number that is damaged


def chosen_by(change: Change, count: int) -> int:
    """Return a number below count that follows from the random numbers of a change."""
    return int.from_bytes(change(bytes(range(64))) + change(bytes(64)), "little") % (2**61 - 1) % count


# --- messages of protobuf ---------------------------------------------------------------------------------------------
def repacked_message(make: Callable[[], Any]) -> Callable[[bytes, Change], bytes]:
    """Return a function that writes a message with one of its fields damaged, gone or there twice."""

    def repacked(data: bytes, change: Change) -> bytes:
        message = make()
        message.ParseFromString(data)
        places = list(_places(message))
        owner, field, at = places[chosen_by(change, len(places))]
        with suppress(ValueError):  # a number that this enumeration does not have
            _damage(owner, field, at, change)
        return message.SerializeToString()

    return repacked


def _places(message: Any) -> Iterator[tuple[Any, Any, int | None]]:
    """Yield the fields of a message and of those in it, with the position in repeated ones."""
    for field, value in message.ListFields():
        if _is_map(field):
            continue
        is_repeated = not hasattr(value, "SerializeToString") and hasattr(value, "append")
        is_repeated |= hasattr(value, "add")
        for at, each in enumerate(value) if is_repeated else ((None, value),):
            yield message, field, at
            if field.message_type is not None:
                yield from _places(each)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _damage(owner: Any, field: Any, at: int | None, change: Change) -> None:
    if field.message_type is not None:
        kind = chosen_by(change, 3)
        if at is None or kind == 0:
            owner.ClearField(field.name)
        elif kind == 1:
            del getattr(owner, field.name)[at]
        else:
            each = getattr(owner, field.name)
            each.add().CopyFrom(each[at])
        return
    values = getattr(owner, field.name)
    value = _damaged_value(field, values if at is None else values[at], change)
    if at is None:
        setattr(owner, field.name, value)
    elif chosen_by(change, 3) == 0:
        del values[at]
    else:
        values[at] = value


def _damaged_value(field: Any, value: Any, change: Change) -> Any:
    if isinstance(value, bytes):
        return change(value)
    if isinstance(value, str):
        return change(value.encode()).decode("utf-8", errors="replace")
    if isinstance(value, float):
        return struct.unpack("<f", change(struct.pack("<f", value))[:4].ljust(4, b"\0"))[0]
    if isinstance(value, bool):
        return not value
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32, field.CPPTYPE_ENUM) else 64
    is_signed = field.cpp_type not in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    room = change(value.to_bytes(ROOM, "little", signed=value < 0))[:ROOM].ljust(ROOM, b"\0")
    return int.from_bytes(room[: bits // 8], "little", signed=is_signed)


# --- files with a head, and archives ----------------------------------------------------------------------------------
def repacked_head(data: bytes, change: Change) -> bytes:
    """Return a file of safetensors whose head is damaged, behind its right length."""
    size = int.from_bytes(data[:8], "little")
    head = change(data[8 : 8 + size])
    return len(head).to_bytes(8, "little") + head + data[8 + size :]


def repacked_archive(data: bytes, change: Change) -> bytes:
    """Return a zip archive one of whose members is damaged, behind its right checksum."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = sorted(parts)[chosen_by(change, len(parts))]
    parts[name] = change(parts[name])
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for each, part in parts.items():
            archive.writestr(each, part)
    return written.getvalue()
