"""Write small GGUF files: what the tests read."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernelyard_llm.gguf import BLOCK_TYPES

NUMBERS = {name: (number, kind) for number, kind in BLOCK_TYPES.items() for name in [kind.name]}
# Where the float16 of a block lie.
HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


class Blocks:
    """A tensor of random blocks: its stored bytes, and the scale of its numbers."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], name: str, scale: float = 0.02) -> None:
        self.shape, self.name = shape, name
        _, kind = NUMBERS[name]
        blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // kind.elements, kind.nbytes), dtype=np.uint8)
        for at in HALVES[name]:
            unit = scale / 64 if kind.elements > 32 else scale  # super-blocks multiply it by integers
            factors = (unit * rng.uniform(0.05, 0.1, blocks.shape[:-1])).astype("<f2")
            blocks[..., at : at + 2] = factors[..., None].view(np.uint8)
        self.data = blocks.tobytes()


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray | Blocks]) -> Path:
    """Write a file of version 3."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        head += [_string(key), _value(value)]
    data, at = [], 0
    for name, tensor in tensors.items():
        kind = tensor.name if isinstance(tensor, Blocks) else {"float32": "F32", "float16": "F16"}[tensor.dtype.name]
        raw = tensor.data if isinstance(tensor, Blocks) else tensor.tobytes()
        sizes = struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1])
        head.append(
            _string(name) + struct.pack("<I", len(tensor.shape)) + sizes + struct.pack("<IQ", NUMBERS[kind][0], at)
        )
        data.append(raw + b"\0" * (-len(raw) % 32))
        at += len(data[-1])
    begin = b"".join(head)
    path.write_bytes(begin + b"\0" * (-len(begin) % 32) + b"".join(data))
    return path


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, np.ndarray):
        kind = {"int32": 5, "float32": 6}[value.dtype.name]
        return struct.pack("<IIQ", 9, kind, value.size) + value.tobytes()
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
