"""Small models of every family of HuggingFace's: configurations, and weights that follow from their names."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

IDS = [5, 77, 30, 9, 58, 3, 44, 91, 17, 2, 60, 31]
KEPT = (0, 3, 6, 11)  # positions whose logits are kept
GOLDEN = Path(__file__).parent / "golden_families"
DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}

_SIZES: dict[str, Any] = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
_SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
_SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_WINDOW = {"sliding_window": 4}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0], "long_factor": [8.0] * 8}
_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16}
_YARN |= {"mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}
_BY_KIND = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}

# Name -> "model_type", what it is given, how weights are stored.
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("llama", _SIZES, "F32"),
    "llama3": (
        "llama",
        {**_SIZES, "rope_parameters": {**_LLAMA3, "rope_theta": 500.0, "original_max_position_embeddings": 16}},
        "BF16",
    ),
    # No size is a multiple of anything; a bias everywhere; the magnitudes of YaRN.
    "llama_odd": (
        "llama",
        {**_SIZES, "vocab_size": 97, "hidden_size": 60, "intermediate_size": 77, "head_dim": 20}
        | {"num_attention_heads": 3, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}
        | {"rope_parameters": _YARN},
        "F32",
    ),
    "smollm": ("llama", {**_SIZES, "tie_word_embeddings": True}, "F16"),
    "smollm3": ("smollm3", {**_SIZES, "num_hidden_layers": 4}, "F32"),
    "mistral": ("mistral", {**_SIZES, **_WINDOW, "head_dim": 32}, "F32"),
    "mixtral": ("mixtral", {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}, "F32"),
    "qwen2": ("qwen2", {**_SIZES, **_WINDOW, "use_sliding_window": True, "max_window_layers": 1}, "F32"),
    "qwen3": (
        "qwen3",
        {
            **_SIZES,
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 16,
            },
        },
        "F32",
    ),
    "qwen2_moe": ("qwen2_moe", {**_SIZES, **_EXPERTS, "shared_expert_intermediate_size": 64}, "F32"),
    "qwen3_moe": (
        "qwen3_moe",
        {**_SIZES, **_EXPERTS, "head_dim": 32, "norm_topk_prob": True, "mlp_only_layers": [1]},
        "F32",
    ),
    "olmo2": ("olmo2", _SIZES, "F32"),
    "olmoe": ("olmoe", {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2}, "F32"),
    "gemma": ("gemma", {**_SIZES, "head_dim": 16}, "F32"),
    "gemma2": ("gemma2", {**_SIZES, **_WINDOW, "head_dim": 16, "query_pre_attn_scalar": 24}, "F32"),
    "gemma3": (
        "gemma3_text",
        {
            **_SIZES,
            **_WINDOW,
            "head_dim": 16,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": _BY_KIND,
        },
        "F32",
    ),
    "phi": ("phi", {**_SIZES, "tie_word_embeddings": False}, "F32"),
    "phi3": ("phi3", {**_SIZES, **_WINDOW}, "F32"),
    "phi3_long": (
        "phi3",
        {
            **_SIZES,
            "original_max_position_embeddings": 32,
            "rope_parameters": {**_LONG, "rope_theta": 10000.0, "original_max_position_embeddings": 32},
        },
        "F32",
    ),
    "gpt2": ("gpt2", _GPT2, "F32"),
    "gpt2_unscaled": (
        "gpt2",
        {**_GPT2, "vocab_size": 97, "n_embd": 60, "n_head": 3, "n_inner": 70}
        | {"scale_attn_weights": False, "activation_function": "relu"},
        "F32",
    ),
}


def weight(name: str, shape: Iterable[int], stored: str) -> np.ndarray:
    """Return a weight that follows from its name, about as large as those of real models."""
    sizes = tuple(shape)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    scale = 0.1 if len(sizes) < 2 else sizes[-1] ** -0.5
    array = rng.normal(0, scale, sizes) + (len(sizes) < 2 and name.endswith("weight"))
    return array.astype(DTYPES[stored])


def weights(shapes: Mapping[str, Iterable[int]], stored: str) -> dict[str, np.ndarray]:
    """Return all weights of a model."""
    return {name: weight(name, shape, stored) for name, shape in shapes.items()}


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file of arrays."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    head, at = {}, 0
    for name, array in arrays.items():
        head[name] = {
            "dtype": names[array.dtype],
            "shape": array.shape,
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(head).encode()
    data = b"".join(array.tobytes() for array in arrays.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_tokenizer(folder: Path, size: int = 96, template: str | None = None) -> None:
    """Write the tokenizer of a small model: special tokens, then letters."""
    special = ["<unk>", "<s>", "<|im_end|>"]
    letters = sorted(ByteLevel.alphabet())[32:][: size - len(special)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    pieces = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    document = {
        "version": "1.0",
        "added_tokens": [{"id": n, "content": text, "special": True, **flags} for n, text in enumerate(special)],
        "normalizer": None,
        "pre_tokenizer": as_bytes,
        "decoder": as_bytes,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": pieces,
            "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "BPE",
            "vocab": {text: n for n, text in enumerate([*special, *letters])},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    config = {"eos_token": {"content": "<|im_end|>"}}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**config, **({} if template is None else {"chat_template": template})}), encoding="utf-8"
    )
