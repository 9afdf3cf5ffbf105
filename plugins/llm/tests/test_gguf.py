"""GGUF files: every block type, and what a malformed file is answered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from dequantized_by_gguf import GOLDEN, blocks_of
from gguf_writer import HALVES, Blocks, write_gguf
from hypothesis import given, settings, strategies
from small_llama import TOKENIZER, llama_metadata, llama_tensors

from kernelyard.errors import KernelyardError
from kernelyard_llm import LanguageModelError, ModelFileError
from kernelyard_llm.blocks import Planes, split_blocks
from kernelyard_llm.from_gguf import gguf_config
from kernelyard_llm.gguf import read_gguf
from kernelyard_llm.source import read_source

RNG = np.random.default_rng(5)


def half(block: bytes, at: int) -> float:
    return float(np.frombuffer(block, "<f2", 1, at)[0])


def number(kind: str, block: bytes, n: int) -> float:
    """The n-th number of a block, by the definitions of the types, one at a time."""
    if kind == "Q8_0":
        return half(block, 0) * np.int8(block[2 + n] - 256 if block[2 + n] > 127 else block[2 + n])
    at = {"Q4_0": 2, "Q4_1": 4, "Q5_0": 6, "Q5_1": 8}[kind]
    byte = block[at + n % 16]
    code = byte >> 4 if n >= 16 else byte & 15
    if kind.startswith("Q5"):
        code |= (block[at - 4 + n // 8] >> n % 8 & 1) << 4
    middle = {"Q4_0": 8, "Q5_0": 16}.get(kind, 0)
    return half(block, 0) * (code - middle) + (half(block, 2) if kind.endswith("1") else 0)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_of_32_are_split_as_defined(kind: str, tmp_path: Path) -> None:
    blocks = Blocks(RNG, (3, 64), kind)
    tensor = read_gguf(write_gguf(tmp_path / "x.gguf", {}, {"x": blocks})).tensors["x"]
    planes = split_blocks(tensor)
    assert isinstance(planes, Planes)
    size = len(blocks.data) // 6
    expected = [number(kind, blocks.data[i : i + size], n) for i in range(0, 6 * size, size) for n in range(32)]
    np.testing.assert_allclose(planes.floats().reshape(-1), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", sorted(HALVES))
def test_numbers_are_those_that_ggml_gives(kind: str, tmp_path: Path) -> None:
    tensor = read_gguf(write_gguf(tmp_path / "x.gguf", {}, {"x": blocks_of(kind)})).tensors["x"]
    planes = split_blocks(tensor)
    assert isinstance(planes, Planes)
    with np.load(GOLDEN) as golden:
        np.testing.assert_allclose(planes.floats(), golden[kind], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", sorted(HALVES))
def test_codes_keep_to_their_bits(kind: str, tmp_path: Path) -> None:
    tensors = {"x": Blocks(RNG, (2, 512), kind)}
    planes = split_blocks(read_gguf(write_gguf(tmp_path / "x.gguf", {}, tensors)).tensors["x"])
    assert isinstance(planes, Planes)
    assert planes.shape == (2, 512)
    assert planes.codes.dtype == np.int8
    assert planes.bits == 8 or planes.codes.max() - min(0, planes.codes.min()) <= 15
    assert np.isfinite(planes.floats()).all()


def test_what_is_read_lies_in_the_file(llama_file: Callable[[str], Path]) -> None:
    file = read_gguf(llama_file("Q4_1"))
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["tokenizer.ggml.tokens"] == TOKENIZER["tokenizer.ggml.tokens"]
    assert not file.tensors["blk.0.attn_q.weight"].data.flags.owndata


def malformed(data: bytes, path: Path) -> KernelyardError:
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        read_gguf(path)
    return caught.value


def test_malformed_files(tmp_path: Path, llama_file: Callable[[str], Path]) -> None:
    whole = llama_file("Q4_1").read_bytes()
    path = tmp_path / "x.gguf"
    assert "no GGUF" in malformed(b"GGML" + whole[4:], path).message
    assert "cannot be read" in malformed(b"", path).message
    assert "version" in malformed(whole[:4] + b"\x09" + whole[5:], path).message
    assert "impossible" in malformed(whole[:8] + b"\xff" * 8 + whole[16:], path).message
    assert "ends" in malformed(whole[:-4096], path).message
    assert "ends" in malformed(whole[:100], path).message
    error = malformed(whole[:24] + b"\xff" * 8 + whole[32:], path)
    assert (error.code, error.hint is not None) == ("KY751", True)


@given(
    kept=strategies.floats(0, 1.3),
    places=strategies.lists(strategies.tuples(strategies.floats(0, 1), strategies.integers(0, 255)), max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_errors_or_other_models(kept: float, places: list, tmp_path_factory) -> None:
    """Of a file that is cut, or has other bytes, what is read is a model, or an error of models."""
    path = tmp_path_factory.mktemp("damaged") / "x.gguf"
    data = bytearray(write_gguf(path, llama_metadata(), llama_tensors("Q4_0")).read_bytes())
    head = data.index(b"output_norm.weight") + 64  # behind it are numbers, of which all are some
    del data[max(1, int(kept * len(data))) :]
    for share, byte in places:
        data[int(share * (min(head, len(data)) - 1))] = byte
    path.write_bytes(data)
    with suppress(LanguageModelError):
        source = read_source(path)
        assert all(source.weights[name] is not None for name in source.weights)


def test_an_unknown_architecture_says_which_there_are(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", {**llama_metadata(), "general.architecture": "rwkv"}, {})
    with pytest.raises(LanguageModelError, match="architecture") as caught:
        gguf_config(read_gguf(path))
    assert "llama" in str(caught.value.expected)
