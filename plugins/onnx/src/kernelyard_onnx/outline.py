"""A model without its large weights, read from a file of any size without reading these.

In protobuf's wire format a message is a sequence of fields: a tag (number and kind), then for messages and bytes a
length and so many bytes. So weights can be stepped over. Where one was, the outline says that it is an external weight
of the model's own file: at which offset, and how long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import onnx

INSIDE = "\0model"  # the location of weights that lie in the model's own file; no file has such a name
LARGE = 4096  # bytes of a weight that is left where it is
MAX_DEPTH = 100  # protobuf's own limit of messages within messages
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TENSOR = onnx.TensorProto.DESCRIPTOR
_FIELDS = _TENSOR.fields_by_name
_DATA_TYPE = _FIELDS["data_type"].number
# Fields that hold a tensor's numbers as they are in memory, by element type (raw_data: those of any).
_NUMBERS: dict[int, str] = {onnx.TensorProto.FLOAT: "float_data", onnx.TensorProto.DOUBLE: "double_data"}
_ALL_DATA = {field.number for name, field in _FIELDS.items() if name.endswith("_data")}
_ELSEWHERE = {_FIELDS["external_data"].number, _FIELDS["data_location"].number}


class MalformedError(ValueError):
    """Bytes that are no message."""


class _Field(NamedTuple):
    number: int
    kind: int
    tag: int  # where the field begins
    start: int  # where its value does
    end: int


def outline_of(data: Sequence[int], size: int) -> bytes:
    """Return the bytes of a ModelProto without large weights. data: the file's bytes by index, and by slice as bytes.

    Raises: MalformedError.

    Example:
        >>> from onnx import helper, numpy_helper
        >>> import numpy as np
        >>> weight = numpy_helper.from_array(np.zeros(10_000, np.float32), "w")
        >>> data = helper.make_model(helper.make_graph([], "g", [], [], [weight])).SerializeToString()
        >>> outline = onnx.ModelProto.FromString(outline_of(data, len(data)))
        >>> {entry.key: entry.value for entry in outline.graph.initializer[0].external_data}["length"]
        '40000'
    """
    return _message(data, onnx.ModelProto.DESCRIPTOR, 0, size, MAX_DEPTH)


def _message(data: Any, descriptor: Any, start: int, end: int, depth: int) -> bytes:
    if not depth:
        raise MalformedError
    if descriptor is _TENSOR:
        return _tensor(data, start, end)
    inner, parts, copied = _messages_of(descriptor), [], start
    for field in _fields(data, start, end):
        if field.kind != _BYTES or field.end - field.start < LARGE or field.number not in inner:
            continue  # what is small has no large weight in it
        body = _message(data, inner[field.number], field.start, field.end, depth - 1)
        parts += [data[copied : field.tag], encode_varint(field.number << 3 | _BYTES), encode_varint(len(body)), body]
        copied = field.end
    return b"".join([*parts, data[copied:end]])


def _tensor(data: Any, start: int, end: int) -> bytes:
    fields = list(_fields(data, start, end))
    types = [_varint(data, field.start, field.end)[0] for field in fields if field.number == _DATA_TYPE]
    as_in_memory = {_FIELDS[name].number for name in ("raw_data", _NUMBERS.get(types[-1] if types else 0)) if name}
    stored = [field for field in fields if field.number in _ALL_DATA]
    if len(stored) != 1 or any(field.number in _ELSEWHERE for field in fields):
        return data[start:end]
    (field,) = stored
    length = field.end - field.start
    if field.number not in as_in_memory or field.kind != _BYTES or length < LARGE:
        return data[start:end]
    place = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", INSIDE), ("offset", str(field.start)), ("length", str(length))):
        place.external_data.add(key=key, value=value)
    return data[start : field.tag] + data[field.end : end] + place.SerializeToString()


@cache
def _messages_of(descriptor: Any) -> dict[int, Any]:
    """Return the fields of a message that are messages, by number."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


def _fields(data: Any, start: int, end: int) -> Iterator[_Field]:
    at = start
    while at < end:
        key, value = _varint(data, at, end)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            length, value = _varint(data, value, end)
            after = value + length
        elif kind == _VARINT:
            _, after = _varint(data, value, end)
        elif kind in (_FIXED64, _FIXED32):
            after = value + (8 if kind == _FIXED64 else 4)
        else:
            raise MalformedError
        if after > end or not number:
            raise MalformedError
        yield _Field(number, kind, at, value, after)
        at = after


def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, the lowest first; and where it ends."""
    result = 0
    for place in range(at, min(at + 10, end)):
        byte = data[place]
        result |= (byte & 0x7F) << 7 * (place - at)
        if byte < 0x80:
            return result, place + 1
    raise MalformedError


def encode_varint(value: int) -> bytes:
    """Encode a number as a varint of protobuf: seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
