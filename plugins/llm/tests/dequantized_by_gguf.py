"""Numbers of random blocks of every type, as the package `gguf` dequantizes them: what `test_gguf.py` compares with.

`pip install gguf; python plugins/llm/tests/dequantized_by_gguf.py` writes `golden_blocks.npz` anew.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf_writer import HALVES, NUMBERS, Blocks

GOLDEN = Path(__file__).parent / "golden_blocks.npz"
SHAPE = (1, 512)


def blocks_of(kind: str) -> Blocks:
    """Return the same random blocks of a type in every run."""
    return Blocks(np.random.default_rng(NUMBERS[kind][0]), SHAPE, kind)


def write() -> None:
    """Write what the package makes of the blocks of every type."""
    from gguf import GGMLQuantizationType, dequantize

    numbers = {}
    for kind in HALVES:
        raw = np.frombuffer(blocks_of(kind).data, np.uint8).reshape(SHAPE[0], -1)
        numbers[kind] = dequantize(raw, GGMLQuantizationType[kind])
    np.savez_compressed(GOLDEN, **numbers)


if __name__ == "__main__":
    write()
