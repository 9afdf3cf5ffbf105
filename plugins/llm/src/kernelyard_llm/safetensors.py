"""Read safetensors files: arrays as they lie in the mapped file.

Layout: the length of a head of JSON in eight bytes, the head (name to dtype, shape and offsets), the data.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from kernelyard_llm.errors import ModelFileError

_INTEGERS = {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "BOOL": "?", **_INTEGERS}
_MOST_HEAD = 100_000_000  # what the format allows


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of files by name. Raises: ModelFileError for a malformed file, or one with other dtypes."""

    def __init__(self, paths: list[Path]) -> None:
        self._found: dict[str, np.ndarray] = {}
        for path in paths:
            self._found.update(_read(path))

    def __getitem__(self, name: str) -> np.ndarray:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _read(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelFileError("a safetensors file cannot be read", where=str(path), found=str(error)) from error
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(_MOST_HEAD, len(data) - 8):
        raise ModelFileError("this is no safetensors file", where=str(path), found=f"{len(data)} bytes")
    try:
        head: dict[str, Any] = json.loads(data[8 : 8 + size])
        for name, entry in head.items():
            if name != "__metadata__":
                yield name, _array(data, 8 + size, entry)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ModelFileError("a safetensors file is damaged", where=str(path), found=str(error)) from error


def _array(data: mmap.mmap, start: int, entry: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(map(int, entry["shape"]))
    begin, end = map(int, entry["data_offsets"])
    count = prod(shape)
    if min(shape, default=1) < 0 or begin < 0 or end - begin != count * dtype.itemsize or end > len(data) - start:
        raise ValueError(f"an array of {shape} does not lie in the bytes {begin} to {end}")
    return np.frombuffer(data, dtype, count, start + begin).reshape(shape)
