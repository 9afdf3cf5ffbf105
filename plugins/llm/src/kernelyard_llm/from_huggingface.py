"""From a folder of HuggingFace's layout to the configuration and the weights of a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernelyard_llm.configuration import Activation, Experts, LayerConfig, ModelConfig, Rope
from kernelyard_llm.errors import LanguageModelError, ModelFileError
from kernelyard_llm.rope_scaling import scaled_rope
from kernelyard_llm.safetensors import Arrays

FAMILIES = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"),
    *("gemma", "gemma2", "gemma3_text", "phi3", "gpt2"),
)
_GEMMA = ("gemma", "gemma2", "gemma3_text")
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# Names of weights behind `model.layers.N.`, in GGUF's words.
_LAYER = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    **{f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_NORMS = {
    "post_attention_layernorm": ("ffn_norm", "post_attention_norm"),  # the second one where there are four norms
    **dict.fromkeys(("pre_feedforward_layernorm",), ("ffn_norm", "ffn_norm")),
    "post_feedforward_layernorm": ("post_ffw_norm", "post_ffw_norm"),
}
_WHOLE = {
    "embed_tokens": "token_embd",
    "wte": "token_embd",
    "wpe": "position_embd",
    "norm": "output_norm",
    "ln_f": "output_norm",
    "lm_head": "output",
}
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)$")
_EXPERT_PARTS = {
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "w1": "ffn_gate",
    "w3": "ffn_up",
    "w2": "ffn_down",
}


class HuggingFaceWeights(Mapping[str, np.ndarray]):
    """The weights of a folder by GGUF's names."""

    def __init__(self, arrays: Mapping[str, np.ndarray], config: ModelConfig) -> None:
        self._arrays, self._config = arrays, config
        four_norms = any("pre_feedforward_layernorm" in name for name in arrays)
        self._names = {known: name for name in arrays if (known := _gguf_name(name, four_norms))}

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._arrays[self._names[name]]
        family = self._config.family
        if family == "gpt2" and name.endswith(".weight") and array.ndim == 2 and name.startswith("blk."):
            return np.ascontiguousarray(array.T)  # it stores them by input
        if family in _GEMMA and "norm" in name:
            return array.astype(np.float32) + 1  # it stores them less one
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _gguf_name(name: str, four_norms: bool) -> str | None:
    stem, _, kind = name.rpartition(".")
    stem = stem.removeprefix("model.").removeprefix("transformer.")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    found = re.match(r"(?:layers|h)\.(\d+)\.(.+)$", stem)
    if found is None:
        return None
    layer, part = found.groups()
    expert = _EXPERT.match(part)
    if expert is not None:
        return f"blk.{layer}.{_EXPERT_PARTS.get(expert[2], expert[2])}.{expert[1]}.{kind}"
    if part in _NORMS:
        return f"blk.{layer}.{_NORMS[part][four_norms]}.{kind}"
    return f"blk.{layer}.{_LAYER[part]}.{kind}" if part in _LAYER else None


def read_folder(folder: Path) -> tuple[ModelConfig, HuggingFaceWeights]:
    """Read `config.json` and the safetensors files of a folder. Raises: LanguageModelError, ModelFileError."""
    config = huggingface_config(read_json(folder / "config.json"), str(folder))
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelFileError("the folder has no weights", where=str(folder), expected="*.safetensors")
    return config, HuggingFaceWeights(Arrays(paths), config)


def read_json(path: Path) -> dict[str, Any]:
    """Read an object of JSON. Raises: ModelFileError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError("a file of the model cannot be read", where=str(path), found=str(error)) from error
    if not isinstance(found, dict):
        raise ModelFileError("a file of the model holds no object", where=str(path), found=type(found).__name__)
    return found


def huggingface_config(given: Mapping[str, Any], where: str) -> ModelConfig:
    """Return the configuration that a `config.json` describes. Raises: LanguageModelError, ModelFileError."""
    family = given.get("model_type")
    if family not in FAMILIES:
        raise LanguageModelError(
            "this architecture is not supported", where=where, found=family, expected=", ".join(FAMILIES)
        )
    try:
        return _config(given, str(family))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelFileError("the configuration of the model cannot be used", where=where, found=repr(error)) from error


def _config(given: Mapping[str, Any], family: str) -> ModelConfig:
    is_gpt2 = family == "gpt2"
    width, heads = (int(given[name]) for name in (("n_embd", "n_head") if is_gpt2 else _SIZES))
    head_size = int(given.get("head_dim") or width // heads)
    act = given.get("hidden_activation") or given.get("activation_function") or given.get("hidden_act") or "silu"
    scalar = given.get("query_pre_attn_scalar")
    return ModelConfig(
        family=family,
        layers=tuple(_layers(given, family, head_size)),
        width=width,
        heads=heads,
        kv_heads=int(given.get("num_key_value_heads") or heads),
        head_size=head_size,
        vocabulary=int(given["vocab_size"]),
        context=int(given["n_positions"] if is_gpt2 else given["max_position_embeddings"]),
        epsilon=float(given["layer_norm_epsilon"] if is_gpt2 else given["rms_norm_eps"]),
        norm="layer" if is_gpt2 else "rms",
        activation="gelu_tanh" if family == "gemma" else _ACTIVATIONS[act],
        gated=not is_gpt2,
        embedding_scale=float(np.float32(width**0.5)) if family in _GEMMA else 1.0,
        attention_scale=None if scalar is None else float(scalar) ** -0.5,
        attention_softcap=given.get("attn_logit_softcapping"),
        final_softcap=given.get("final_logit_softcapping"),
        experts=_experts(given, family),
    )


_SIZES = ("hidden_size", "num_attention_heads")


def _experts(given: Mapping[str, Any], family: str) -> Experts | None:
    count = given.get("num_local_experts") or given.get("num_experts")
    if not count:
        return None
    normalized = family == "mixtral" or bool(given.get("norm_topk_prob"))
    return Experts(int(count), int(given["num_experts_per_tok"]), normalized, shared=family == "qwen2_moe")


def _layers(given: Mapping[str, Any], family: str, head_size: int) -> Iterator[LayerConfig]:
    count = int(given["n_layer"] if family == "gpt2" else given["num_hidden_layers"])
    window = given.get("sliding_window") if given.get("use_sliding_window", True) else None
    kinds = given.get("layer_types") or [_kind(number, family, given, window) for number in range(count)]
    for number in range(count):
        is_local = kinds[number] == "sliding_attention"
        rope: Rope | None = None if family == "gpt2" else scaled_rope(given, head_size, kinds[number])
        yield LayerConfig(int(window) if is_local and window else None, rope)


def _kind(number: int, family: str, given: Mapping[str, Any], window: object) -> str:
    """Return the kind of attention of a layer that the configuration does not list."""
    pattern = {"gemma2": 2, "gemma3_text": int(given.get("sliding_window_pattern") or 6)}.get(family)
    if pattern is not None:
        return "full_attention" if number % pattern == pattern - 1 else "sliding_attention"
    return "sliding_attention" if window and family in ("mistral", "mixtral", "phi3") else "full_attention"
