"""From a GGUF file to the configuration and the weights of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kernelyard_llm.blocks import Planes, split_blocks
from kernelyard_llm.configuration import MOST_LAYERS, Experts, LayerConfig, ModelConfig, Rope
from kernelyard_llm.errors import LanguageModelError, ModelFileError
from kernelyard_llm.families import FAMILIES, GGUF_NAMES
from kernelyard_llm.gguf import GGUFFile, StoredTensor
from kernelyard_llm.rope_scaling import yarn_rope

_MOST = {"block_count": MOST_LAYERS, "embedding_length": 1 << 20, "attention.head_count": 4096}


class GGUFWeights(Mapping[str, "np.ndarray | Planes"]):
    """The weights of a file by name; blocks are split when a weight is asked for."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._tensors = _merge_experts(file.tensors)
        self._config, self._turned = config, FAMILIES[config.family].interleaved

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


def _merge_experts(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
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
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in GGUF_NAMES:
        raise LanguageModelError(
            "this architecture is not supported",
            where=str(file.path),
            found=architecture,
            expected=", ".join(GGUF_NAMES),
        )
    try:
        return _config(_Metadata(file, architecture), GGUF_NAMES[architecture])
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise ModelFileError("the metadata cannot be used", where=str(file.path), found=str(error)) from error


def _config(read: _Metadata, name: str) -> ModelConfig:
    file, family = read.file, FAMILIES[name]
    heads, width = read.size("attention.head_count"), read.size("embedding_length")
    head_size = read.size("attention.key_length", width // heads)
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2 or table.shape[1] != width:
        raise ModelFileError("the embedding is missing, or has another width", where=str(file.path))
    is_layer_norm = read.number("attention.layer_norm_epsilon", None) is not None
    epsilon = read.number("attention.layer_norm_epsilon" if is_layer_norm else "attention.layer_norm_rms_epsilon", 1e-5)
    return ModelConfig(
        family=name,
        layers=tuple(_layers(read, name, head_size)),
        width=width,
        heads=heads,
        kv_heads=read.size("attention.head_count_kv", heads),
        head_size=head_size,
        vocabulary=table.shape[0],
        context=_context(read),
        epsilon=1e-5 if epsilon is None else epsilon,
        norm="layer" if is_layer_norm else "rms",
        activation=family.activation,
        gated=family.gated,
        parallel=family.parallel,
        attention_scale=(width // heads) ** -0.5 if (name, read.size("block_count")) in _SCALED_BY_WIDTH else None,
        embedding_scale=float(np.float32(width**0.5)) if family.scales_embedding else 1.0,
        attention_softcap=read.number("attn_logit_softcapping", None),
        final_softcap=read.number("final_logit_softcapping", None),
        experts=_experts(read, name),
    )


def _experts(read: _Metadata, name: str) -> Experts | None:
    count, family = read.size("expert_count", 0), FAMILIES[name]
    if not count:
        return None
    return Experts(count, read.size("expert_used_count"), name in _NORMALIZED_EXPERTS, family.shared_expert)


# Files do not say it: the largest Gemmas, known by their layers, divide scores by another number than the others.
_SCALED_BY_WIDTH = (("gemma2", 46), ("gemma3_text", 62))
# Files do not say it: weights of the chosen experts sum to 1.
_NORMALIZED_EXPERTS = ("llama", "qwen3_moe")


def _layers(read: _Metadata, name: str, head_size: int) -> Iterator[LayerConfig]:
    window, family = read.number("attention.sliding_window", None), FAMILIES[name]
    rope = None if "position_embd.weight" in read.file.tensors else _rope(read, head_size)
    local = rope if rope is None or family.local_base is None else Rope(family.local_base, rope.size)
    for number in range(1, read.size("block_count") + 1):
        sees_all = not window or (family.pattern > 0 and number % family.pattern == 0)
        turns = not family.unturned or number % family.unturned != 0
        yield LayerConfig(None if sees_all else int(window or 0), (rope if sees_all else local) if turns else None)


def _rope(read: _Metadata, head_size: int) -> Rope:
    """Return the rotary positions, stretched as the metadata say. Raises: LanguageModelError for an unknown way."""
    size, base = read.size("rope.dimension_count", head_size), read.real("rope.freq_base", 10000.0)
    how, factor = read.text("rope.scaling.type", "none"), read.real("rope.scaling.factor", 1.0)
    if how == "yarn":
        return yarn_rope(base, size, factor, read.size("rope.scaling.original_context_length"))
    if how not in ("none", "linear", "longrope"):
        raise LanguageModelError(
            "this scaling of rotary positions is not supported", where=str(read.file.path), found=how
        )
    factors = _numbers(read.file, "rope_freqs.weight") or _numbers(read.file, "rope_factors_short.weight")
    if factors is not None and len(factors) != size // 2:
        raise ModelFileError("the factors of rotary positions have another size", where=str(read.file.path))
    magnitude = read.real("rope.scaling.attn_factor", 1.0)
    return Rope(base, size, factor if how == "linear" else 1.0, factors, magnitude)


def _context(read: _Metadata) -> int:
    """Return the positions of the model: those of short texts, where long ones turn by other factors."""
    whole = read.size("context_length")
    if "rope_factors_long.weight" not in read.file.tensors:
        return whole
    return min(whole, read.size("rope.scaling.original_context_length", whole))


def _numbers(file: GGUFFile, name: str) -> tuple[float, ...] | None:
    found = file.tensors.get(name)
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

    def real(self, name: str, default: float) -> float:
        found = self.number(name, default)
        if found is None or not 0 < found < float("inf"):
            raise self._wrong(name, found, "a positive number")
        return float(found)

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
