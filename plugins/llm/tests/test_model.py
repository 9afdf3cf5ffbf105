"""A whole model: its numbers against transformers, its state, its texts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from gguf_writer import write_gguf
from small_llama import CONTEXT, HEADS, KV_HEADS, LAYERS, TOKENS, WIDTH, llama_metadata

import kernelyard
import kernelyard_llm
from kernelyard_llm import LanguageModel, LanguageModelError
from kernelyard_llm.blocks import Planes, split_blocks
from kernelyard_llm.cache import CachePages
from kernelyard_llm.from_gguf import GGUFWeights, gguf_config
from kernelyard_llm.gguf import read_gguf
from kernelyard_llm.source import read_source

IDS = [5, 77, 130, 9, 258, 3, 44, 201, 17, 99, 260, 31]
RNG = np.random.default_rng(1)


class Reference:
    """The network in float64, written down from the definition of Llama. block: rows are rounded to int8 by such."""

    def __init__(self, path: Path, block: int | None = None) -> None:
        self.block = block
        file = read_gguf(path)
        weights = GGUFWeights(file, gguf_config(file))
        self.weights = {
            name: np.asarray(w.floats() if isinstance(w := weights[name], Planes) else w, np.float64)
            for name in weights
        }

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.weights[f"{name}.weight"]

    def logits(self, ids: list[int]) -> np.ndarray:
        size = WIDTH // HEADS
        angles = np.arange(len(ids))[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
        x = self.weights["token_embd.weight"][ids]
        for layer in range(LAYERS):

            def product(y: np.ndarray, name: str, layer: int = layer) -> np.ndarray:
                return self.rounded(y) @ self.weights[f"blk.{layer}.{name}.weight"].T

            y = self.norm(x, f"blk.{layer}.attn_norm")
            q, k, v = (product(y, f"attn_{n}").reshape(len(ids), -1, size) for n in "qkv")
            q, k = (self.turned(part, angles) for part in (q, k))
            k, v = (part.repeat(HEADS // KV_HEADS, 1) for part in (k, v))
            scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(size)
            scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            y = np.einsum("hij,jhd->ihd", powers / powers.sum(-1, keepdims=True), v).reshape(len(ids), -1)
            x = x + product(y, "attn_output")
            y = self.norm(x, f"blk.{layer}.ffn_norm")
            gate = product(y, "ffn_gate")
            x = x + product(gate / (1 + np.exp(-gate)) * product(y, "ffn_up"), "ffn_down")
        return self.rounded(self.norm(x, "output_norm")) @ self.weights["token_embd.weight"].T

    def rounded(self, y: np.ndarray) -> np.ndarray:
        if self.block is None:
            return y
        blocks = y.reshape(len(y), -1, self.block)
        scale = np.abs(blocks).max(-1, keepdims=True) / 127
        return (np.rint(blocks / scale) * scale).reshape(y.shape)

    @staticmethod
    def turned(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, -1)
        cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_logits_are_those_of_the_definition(kind: str, llama_file: Callable[[str], Path]) -> None:
    model = kernelyard_llm.load(llama_file(kind), threads=1, products="float")
    assert_near(model.logits(IDS), Reference(llama_file(kind)).logits(IDS))


@pytest.mark.parametrize("products", ["int16", "float"])
def test_an_embedding_that_is_also_the_head_is_stored_once(llama_file, products):
    executable = kernelyard_llm.load(llama_file("Q4_1"), threads=1, products=products).executable
    least, padded = len(TOKENS) * WIDTH, -(-len(TOKENS) // 64) * 64 * WIDTH
    of_bytes = [each for each in executable.constants.values() if least <= each.nbytes <= padded]
    assert len(of_bytes) == 1
    assert {"dequantize", "take"} <= {op for kernel in executable.report.kernels for op in kernel.ops}


def test_weights_are_read_as_they_are_stored(llama: LanguageModel, llama_file: Callable[[str], Path]) -> None:
    constants = llama.executable.constants.values()
    stored = llama_file("Q4_1").stat().st_size
    embedding = len(TOKENS) * WIDTH
    assert sum(constant.nbytes for constant in constants) < 1.25 * stored + 2 * embedding
    largest = 4 * WIDTH * WIDTH  # of a float32 matrix
    assert not [c for c in constants if c.dtype == np.float32 and c.nbytes >= largest]


def test_one_token_at_a_time_is_the_same_text(llama: LanguageModel) -> None:
    whole = llama.logits(IDS)
    state = llama._state
    state.clear()
    parts = [state.append(IDS[:3]), *(state.append([token]) for token in IDS[3:])]
    assert_near(np.stack(parts), whole[2:])


def test_chunks_and_pages_are_the_same_text(llama: LanguageModel, llama_file: Callable[[str], Path]) -> None:
    ids = RNG.integers(3, len(TOKENS), 300).tolist()  # more than a chunk, and than several pages
    assert_near(
        llama.logits(ids)[[0, 63, 64, 255, 256, 299]],
        Reference(llama_file("Q4_1")).logits(ids)[[0, 63, 64, 255, 256, 299]],
    )


def test_greedy_tokens_are_those_of_the_definition(llama: LanguageModel, llama_file: Callable[[str], Path]) -> None:
    reference, ids = Reference(llama_file("Q4_1")), list(IDS)
    found = llama.generate(IDS, max_new_tokens=8, ignore_eos=True)
    for token in found:
        logits = reference.logits(ids)[-1]
        assert logits[token] >= logits.max() - 1e-3 * np.abs(logits).max()
        ids.append(token)
    assert llama.stats is not None
    assert (llama.stats.prompt_tokens, llama.stats.new_tokens) == (len(IDS), 8)
    assert llama.stats.decode_tokens_per_second > 0
    assert llama.stats.prefill_tokens_per_second > 0
    assert llama.generate(IDS, max_new_tokens=8, ignore_eos=True) == found


def test_no_plan_is_made_for_each_length(llama: LanguageModel) -> None:
    llama.generate(IDS, max_new_tokens=4, ignore_eos=True)
    misses = llama.executable.cache_info()["plans"].misses
    llama.generate(IDS, max_new_tokens=40, ignore_eos=True)
    assert llama.executable.cache_info()["plans"].misses == misses


def test_a_saved_model_says_the_same(llama: LanguageModel, tmp_path: Path) -> None:
    llama.save(tmp_path / "x.kyar")
    again = kernelyard_llm.load(tmp_path / "x.kyar", threads=1)
    messages = [{"role": "user", "content": "the"}]
    assert again.prompt(messages) == llama.prompt(messages)
    assert again.chat(messages, max_new_tokens=5) == llama.chat(messages, max_new_tokens=5)


def test_compile_reads_the_file(llama_file: Callable[[str], Path]) -> None:
    executable = kernelyard.compile(llama_file("Q4_1"))
    assert sorted(executable.entries) == ["decode", "decode_batch", "extend", "head"]
    assert kernelyard_llm.from_executable(executable).config.width == WIDTH


def test_memory_is_taken_for_the_pages_that_are_needed(llama: LanguageModel) -> None:
    pages = CachePages(llama.config, 30)
    row = RNG.random((LAYERS, KV_HEADS, WIDTH // HEADS)).astype(pages.arguments[0].dtype)
    assert pages.arguments[0].shape[1] < 15
    pages.write(3, 7, [row, 2 * row])
    for wanted, there in ((3, 8), (9, 16), (17, 30), (30, 30)):
        pages.reserve(wanted)
        assert [part.shape[1] for part in pages.arguments] == [there] * 2 * LAYERS
    np.testing.assert_array_equal(pages.arguments[LAYERS - 1][:, 3, 7], row[-1])
    np.testing.assert_array_equal(pages.arguments[-1][:, 3, 7], 2 * row[-1])
    assert np.count_nonzero(pages.arguments[0]) == row[0].size


@pytest.mark.parametrize(("dtype", "itemsize", "atol"), [("float16", 2, 2e-3), ("int8", 1, 3e-2)])
def test_a_narrow_cache(
    dtype: str, itemsize: int, atol: float, llama_file: Callable[[str], Path], tmp_path: Path
) -> None:
    exact = kernelyard_llm.load(llama_file("Q4_1"), threads=1, cache_dtype="float32")
    model = kernelyard_llm.load(llama_file("Q4_1"), threads=1, cache_dtype=dtype)
    keys = model._state._pages.arguments[0]
    assert (keys.dtype.itemsize, keys.shape[-1]) == (itemsize, WIDTH // HEADS)
    state, expected = model._state, exact.logits(IDS)
    parts = [state.append(IDS[:3]), *(state.append([token]) for token in IDS[3:])]
    np.testing.assert_allclose(np.stack(parts), expected[2:], atol=atol * np.abs(expected).max())
    model.save(tmp_path / "x.kyar")
    again = kernelyard_llm.load(tmp_path / "x.kyar", threads=1, cache_dtype=dtype)
    assert again.generate(IDS, 4, ignore_eos=True) == model.generate(IDS, 4, ignore_eos=True)
    with pytest.raises(LanguageModelError, match="compiled for"):
        kernelyard_llm.load(tmp_path / "x.kyar", cache_dtype="float32")


@pytest.mark.parametrize(("kind", "dtype"), [("Q4_1", "float16"), ("F32", "float32")])
def test_a_cache_is_as_wide_as_the_weights(
    kind: str, dtype: str, llama_file: Callable[[str], Path], tmp_path: Path
) -> None:
    file = llama_file("Q4_1")
    if kind == "F32":
        tensors = {name: split_blocks(tensor) for name, tensor in read_gguf(file).tensors.items()}
        wide = {name: w.floats() if isinstance(w, Planes) else w for name, w in tensors.items()}
        file = write_gguf(tmp_path / "wide.gguf", llama_metadata(), wide)
    assert read_source(file).description.config.cache_dtype == dtype
    assert read_source(file).with_cache("bfloat16").description.config.cache_dtype == "bfloat16"


def test_a_cache_of_no_such_dtype(llama_file: Callable[[str], Path]) -> None:
    with pytest.raises(LanguageModelError, match="no such dtype"):
        kernelyard_llm.load(llama_file("Q4_1"), cache_dtype="int2")


def test_too_long_a_text(llama: LanguageModel) -> None:
    with pytest.raises(LanguageModelError, match="longer than the context"):
        llama.generate([5] * (CONTEXT + 1))
    assert len(llama.generate([5] * (CONTEXT - 2), max_new_tokens=9, ignore_eos=True)) == 3
    with pytest.raises(LanguageModelError, match="unknown token"):
        llama.generate([len(TOKENS)])
    with pytest.raises(LanguageModelError, match="no tokens"):
        llama.generate([])


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match="no such"):
        kernelyard_llm.load(tmp_path / "x.gguf")
    b = kernelyard.ir.FunctionBuilder()
    exe = kernelyard.compile(kernelyard.IRModule({"main": b.function(b.op("exp", b.input("x", (2,))))}), backends=[])
    with pytest.raises(LanguageModelError, match="no language model"):
        kernelyard_llm.from_executable(exe)


def test_products_of_integers(llama_file: Callable[[str], Path], tmp_path: Path) -> None:
    path = llama_file("Q4_1")
    model = kernelyard_llm.load(path, threads=1, products="int8")
    symbols = [kernel.name for kernel in model.executable.report.kernels]
    assert any("quantize_blocks" in symbol for symbol in symbols)
    exact, rounded = Reference(path).logits(IDS), Reference(path, 32).logits(IDS)
    # Here and there a number lies so near the middle between two integers that float32 rounds it the other way.
    assert np.linalg.norm(model.logits(IDS) - rounded) < 0.2 * np.linalg.norm(exact - rounded)
    model.save(tmp_path / "int8.kyar")
    again = kernelyard_llm.load(tmp_path / "int8.kyar", threads=1)
    np.testing.assert_array_equal(again.logits(IDS), model.logits(IDS))
    with pytest.raises(LanguageModelError, match="compiled already"):
        kernelyard_llm.load(tmp_path / "int8.kyar", products="float")


def test_products_of_16_bits_are_the_default(llama: LanguageModel, llama_file: Callable[[str], Path]) -> None:
    names = {kernel.name for kernel in llama.executable.report.kernels}
    # As integers, or where floats are multiplied faster (`CodeGenerator.multiplies_digits`) as rounded floats.
    assert any("quantize_blocks" in name or "fake_quantize" in name for name in names)
    exact, rounded = (Reference(llama_file("Q4_1"), block).logits(IDS) for block in (None, 32))
    assert np.linalg.norm(llama.logits(IDS) - exact) < 0.02 * np.linalg.norm(rounded - exact)


def test_other_products_are_refused(llama_file: Callable[[str], Path]) -> None:
    with pytest.raises(LanguageModelError, match="no such kind of products"):
        kernelyard_llm.load(llama_file("Q4_1"), products="int3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(LanguageModelError, match="no such kind of products"):
        kernelyard.compile(str(llama_file("Q4_1")), options={"llm": {"products": 8}})


def test_the_tokenizer_is_built_once_for_all_threads(llama: LanguageModel) -> None:
    model, together = LanguageModel(llama.executable, llama.description), Barrier(8)

    def ask(_: int) -> object:
        together.wait(30)
        return model.tokenizer

    with ThreadPoolExecutor(8) as threads:
        assert len(set(map(id, threads.map(ask, range(8))))) == 1
