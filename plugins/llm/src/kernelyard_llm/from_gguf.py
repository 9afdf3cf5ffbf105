"""From a GGUF file to the configuration and the weights of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernelyard_llm.blocks import Planes, split_blocks
from kernelyard_llm.configuration import Activation, Experts, LayerConfig, ModelConfig, Rope
from kernelyard_llm.errors import LanguageModelError, ModelFileError
from kernelyard_llm.gguf import GGUFFile, StoredTensor

# What the architectures of GGUF have beside what their metadata and weights say.
_ACTIVATIONS: dict[str, Activation] = dict.fromkeys(("gemma", "gemma2", "gemma3", "gpt2"), "gelu_tanh")
_SCALED_EMBEDDINGS = ("gemma", "gemma2", "gemma3")
# Pairs that turn lie beside each other in these files; here they lie half a head apart.
_INTERLEAVED = ("llama",)
# Every so many-th layer sees all positions, the others a window.
_PATTERNS = {"gemma2": 2, "gemma3": 6}
_LOCAL_ROPE_BASE = {"gemma3": 10000.0}
_FAMILIES = ("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma", "gemma2", "gemma3", "phi3", "gpt2")
_MOST = {"block_count": 1024, "embedding_length": 1 << 20, "attention.head_count": 4096}


class GGUFWeights(Mapping[str, "np.ndarray | Planes"]):
    """The weights of a file by name; blocks are split when a weight is asked for."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._tensors = _by_expert(file.tensors)
        self._config, self._turned = config, file.metadata.get("general.architecture") in _INTERLEAVED

    def __getitem__(self, name: str) -> np.ndarray | Planes:
        found = split_blocks(self._tensors[name])
        heads = {"attn_q": self._config.heads, "attn_k": self._config.kv_heads}.get(name.split(".")[-2])
        if heads is None or not self._turned:
            return found
        order = _halves_first(found.shape[0], heads)
        return found.rows(order) if isinstance(found, Planes) else found[order]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _halves_first(rows: int, heads: int) -> np.ndarray:
    """Return the order of rows in which pairs that lay beside each other lie half a head apart."""
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _by_expert(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors with those of all experts as one of each: blk.0.ffn_up_exps -> blk.0.ffn_up.3."""
    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if "_exps." not in name or len(tensor.shape) != 3:
            found[name] = tensor
            continue
        count, *shape = tensor.shape
        for number, data in enumerate(tensor.data.reshape(count, shape[0], -1)):
            each = name.replace("_exps.", f".{number}.")
            found[each] = StoredTensor(each, tuple(shape), tensor.type, data)
    return found


def gguf_config(file: GGUFFile) -> ModelConfig:
    """Return the configuration that the metadata of a file describe.

    Raises: LanguageModelError for an unknown architecture, ModelFileError for metadata that are missing or impossible.
    """
    family = file.metadata.get("general.architecture")
    if family not in _FAMILIES:
        raise LanguageModelError(
            "this architecture is not supported", where=str(file.path), found=family, expected=", ".join(_FAMILIES)
        )
    read = _Metadata(file, str(family))
    heads, width = read.size("attention.head_count"), read.size("embedding_length")
    head_size = read.size("attention.key_length", width // heads)
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2 or table.shape[1] != width:
        raise ModelFileError("the embedding is missing, or has another width", where=str(file.path))
    is_layer_norm = read.number("attention.layer_norm_epsilon", None) is not None
    epsilon = read.number("attention.layer_norm_epsilon" if is_layer_norm else "attention.layer_norm_rms_epsilon", 1e-5)
    return ModelConfig(
        family=str(family),
        layers=tuple(_layers(read, str(family), head_size)),
        width=width,
        heads=heads,
        kv_heads=read.size("attention.head_count_kv", heads),
        head_size=head_size,
        vocabulary=table.shape[0],
        context=read.size("context_length"),
        epsilon=1e-5 if epsilon is None else epsilon,
        norm="layer" if is_layer_norm else "rms",
        activation=_ACTIVATIONS.get(str(family), "silu"),
        gated=family != "gpt2",
        embedding_scale=float(np.float32(width**0.5)) if family in _SCALED_EMBEDDINGS else 1.0,
        attention_softcap=read.number("attn_logit_softcapping", None),
        final_softcap=read.number("final_logit_softcapping", None),
        experts=_experts(read, file, str(family)),
    )


def _experts(read: _Metadata, file: GGUFFile, family: str) -> Experts | None:
    count = read.size("expert_count", 0)
    if not count:
        return None
    has_shared = "blk.0.ffn_up_shexp.weight" in file.tensors
    return Experts(count, read.size("expert_used_count"), normalized=family != "qwen2moe", shared=has_shared)


def _layers(read: _Metadata, family: str, head_size: int) -> Iterator[LayerConfig]:
    window, pattern = read.number("attention.sliding_window", None), _PATTERNS.get(family, 1)
    if family == "gpt2":
        rope = local = None
    else:
        size = read.size("rope.dimension_count", head_size)
        factor = 1.0
        if read.text("rope.scaling.type", "none") == "linear":
            factor = float(read.number("rope.scaling.factor", 1.0) or 1.0)
        rope = Rope(float(read.number("rope.freq_base", 10000.0) or 10000.0), size, factor, _factors(read.file))
        local = Rope(_LOCAL_ROPE_BASE[family], size) if family in _LOCAL_ROPE_BASE else rope
    for number in range(read.size("block_count")):
        sees_all = not window or (pattern > 1 and number % pattern == pattern - 1)
        yield LayerConfig(None if sees_all else int(window or 0), rope if sees_all else local)


def _factors(file: GGUFFile) -> tuple[float, ...] | None:
    found = file.tensors.get("rope_freqs.weight")
    if found is None or found.type.name != "F32":
        return None
    return tuple(found.data.view("<f4").reshape(-1).tolist())


class _Metadata:
    """Entries of one architecture, checked."""

    def __init__(self, file: GGUFFile, family: str) -> None:
        self.file, self.family = file, family

    def size(self, name: str, default: int | None = None) -> int:
        found = self._find(name, default)
        most = _MOST.get(name, 1 << 31)
        if isinstance(found, bool) or not isinstance(found, (int, np.integer)) or not 0 <= found <= most:
            raise self._wrong(name, found, f"a whole number up to {most}")
        if found == 0 and default != 0:
            raise self._wrong(name, found, "a positive number")
        return int(found)

    def number(self, name: str, default: float | None) -> float | None:
        found = self._find(name, default)
        if found is not None and not isinstance(found, (int, float)):
            raise self._wrong(name, found, "a number")
        return found

    def text(self, name: str, default: str) -> str:
        found = self._find(name, default)
        if not isinstance(found, str):
            raise self._wrong(name, found, "text")
        return found

    def _find(self, name: str, default: Any) -> Any:
        found = self.file.metadata.get(f"{self.family}.{name}", default)
        return found[0].item() if isinstance(found, np.ndarray) and len(set(found.tolist())) == 1 else found

    def _wrong(self, name: str, found: object, expected: str) -> ModelFileError:
        where = f"{self.file.path}, {self.family}.{name}"
        return ModelFileError("an entry of the metadata cannot be used", where=where, found=found, expected=expected)
