"""Constants as safetensors data, read in place.

The format (github.com/huggingface/safetensors, "Format"): 8 bytes with the length of a JSON header, the header
(name -> dtype, shape, data_offsets), the tensors' bytes without holes. The library's own reader copies every tensor;
here the arrays are views of the file's bytes. Tensors whose size is a multiple of 64 come first, which leaves them
and the largest of the others aligned.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernelyard import dtypes
from kernelyard.runtime.abi import memory
from kernelyard.runtime.abi.spec import Fields, corrupted, read_json, write_json

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_LENGTH_NBYTES = 8


def to_parts(arrays: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """Return the data in parts, the arrays not copied; the same for equal arrays."""
    header: dict[str, object] = {}
    parts: list[bytes | memoryview] = []
    position = 0
    for name in sorted(arrays, key=lambda name: _place(name, arrays[name].nbytes)):
        array = arrays[name]
        header[name] = {
            "dtype": _NAMES[dtypes.from_numpy(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        parts.append(native.reshape(-1).view(np.uint8).data)
        position += array.nbytes
    text = write_json(header)
    text = text.ljust(memory.align(_LENGTH_NBYTES + len(text)) - _LENGTH_NBYTES)
    return [len(text).to_bytes(_LENGTH_NBYTES, "little"), text, *parts]


def _place(name: str, nbytes: int) -> tuple[bool, int, str]:
    return nbytes % memory.ALIGNMENT != 0, -nbytes, name


def from_bytes(data: np.ndarray, where: str) -> dict[str, np.ndarray]:
    """Return read-only arrays over uint8 data.

    Raises: ArtifactCorruptedError.
    """
    length = int.from_bytes(data[:_LENGTH_NBYTES].tobytes(), "little")
    if data.nbytes < _LENGTH_NBYTES or length > data.nbytes - _LENGTH_NBYTES:
        raise corrupted(where, f"{data.nbytes} bytes", "a header and tensors")
    header = Fields(read_json(data[_LENGTH_NBYTES : _LENGTH_NBYTES + length].tobytes(), where), where)
    body = data[_LENGTH_NBYTES + length :]
    entries = [(name, Fields(item, f"{where}, tensor {name[:12]}")) for name, item in header.value.items()]
    arrays: dict[str, np.ndarray] = {}
    position = 0
    for name, fields in sorted(entries, key=lambda entry: entry[1].indices("data_offsets", body.nbytes + 1)):
        arrays[name], position = _read_tensor(fields, body, position)
    if position != body.nbytes:
        raise corrupted(where, f"{body.nbytes} bytes", f"{position} bytes of tensors")
    return arrays


def _read_tensor(fields: Fields, body: np.ndarray, position: int) -> tuple[np.ndarray, int]:
    dtype = _DTYPES.get(fields.text("dtype"))
    shape = fields.indices("shape", 1 << 48)
    if dtype is None:
        raise corrupted(fields.where, fields.text("dtype"), ", ".join(_DTYPES))
    end = position + memory.nbytes_of(shape, dtype)
    if fields.indices("data_offsets", body.nbytes + 1) != (position, end):
        raise corrupted(fields.where, fields.any("data_offsets"), f"[{position}, {end}]")
    array = body[position:end].view(dtypes.to_numpy(dtype)).reshape(shape)
    array.flags.writeable = False
    return array, end
