"""From a folder of HuggingFace's layout to the configuration and the weights of a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernelyard_llm.configuration import MOST_LAYERS, Activation, Experts, LayerConfig, ModelConfig
from kernelyard_llm.errors import LanguageModelError, ModelFileError
from kernelyard_llm.families import FAMILIES, Family
from kernelyard_llm.rope_scaling import context_of, scale_rope
from kernelyard_llm.safetensors import Arrays

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# The names that configurations have for the same numbers; the first one that is there counts.
_NUMBERS: dict[str, tuple[str, ...]] = {
    "width": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "layers": ("num_hidden_layers", "n_layer"),
    "context": ("max_position_embeddings", "n_positions"),
    "epsilon": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    "experts": ("num_local_experts", "num_experts"),
}
# What a name in `config.json` says of a network that has nothing else in place of it: with these it is another one.
_UNSUPPORTED = {"clip_qkv": None, "qk_layernorm": False, "scale_attn_by_inverse_layer_idx": False}
# Names of weights behind `model.layers.N.`, in GGUF's words.
_LAYER = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_output",
    "self_attn.dense": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
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
_DAMAGED = (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError, IndexError, AttributeError)
_BEHIND_ATTENTION = "post_attention_layernorm"
_WHOLE = {
    "embed_tokens": "token_embd",
    "wte": "token_embd",
    "wpe": "position_embd",
    "norm": "output_norm",
    "final_layernorm": "output_norm",
    "ln_f": "output_norm",
    "lm_head": "output",
}
_HEAD = ("output.weight", "output.bias")
_PREFIX = re.compile(r"^(?:model\.|transformer\.|language_model\.)*")
_NAME_IN_LAYER = re.compile(r"(?:layers|h)\.(\d+)\.(.+)$")
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
        self._arrays, self._family = arrays, FAMILIES[config.family]
        # Where the feed-forward network has a norm behind it, so has attention: the name is that of the norm before
        # the feed-forward network elsewhere.
        has_norms_behind = any("post_feedforward_layernorm" in name for name in arrays)
        behind = "post_attention_norm" if has_norms_behind else "ffn_norm"
        names = {known: name for name in arrays if (known := _gguf_name(name, behind))}
        self._names = {known: name for known, name in names.items() if not (config.is_tied and known in _HEAD)}

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._arrays[self._names[name]]
        if self._family.by_input and name.endswith(".weight") and array.ndim == 2 and name.startswith("blk."):
            return np.ascontiguousarray(array.T)
        if self._family.less_one and "norm" in name:
            return array.astype(np.float32) + 1
        return array

    def read_stored(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the weights as they lie in the files."""
        return ((name, self._arrays[stored]) for name, stored in self._names.items())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _gguf_name(name: str, behind_attention: str) -> str | None:
    stem, _, kind = _PREFIX.sub("", name).rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    found = _NAME_IN_LAYER.match(stem)
    if found is None:
        return None
    layer, part = found.groups()
    expert = _EXPERT.match(part)
    if expert is not None:
        return f"blk.{layer}.{_EXPERT_PARTS.get(expert[2], expert[2])}.{expert[1]}.{kind}"
    known = behind_attention if part == _BEHIND_ATTENTION else _LAYER.get(part)
    return None if known is None else f"blk.{layer}.{known}.{kind}"


def read_folder(folder: Path) -> tuple[ModelConfig, HuggingFaceWeights]:
    """Read `config.json` and the safetensors files of a folder. Raises: LanguageModelError, ModelFileError."""
    config = huggingface_config(read_json(folder / "config.json"), str(folder))
    return config, HuggingFaceWeights(Arrays(_weight_files(folder)), config)


def _weight_files(folder: Path) -> list[Path]:
    """Return the files of weights: those of the index, where there is one; beside them may lie others with the same."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(each, str) for each in named.values()):
            raise ModelFileError("the index of the weights is damaged", where=str(index))
        files = sorted(set(named.values()))
        if any(Path(each).name != each for each in files):
            raise ModelFileError("the index names files outside of its folder", where=str(index))
        return [folder / each for each in files]
    paths = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelFileError("the folder has no weights", where=str(folder), expected="*.safetensors")
    return paths


def read_json(path: Path) -> dict[str, Any]:
    """Read an object of JSON. Raises: ModelFileError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError("a file of the model cannot be read", where=str(path), found=str(error)) from error
    if not isinstance(found, dict):
        raise ModelFileError("a file of the model holds no object", where=str(path), found=type(found).__name__)
    return found


def huggingface_config(given: Mapping[str, Any], where: str) -> ModelConfig:
    """Return the configuration that a `config.json` describes. Raises: LanguageModelError, ModelFileError."""
    if given.get("model_type") not in FAMILIES and isinstance(given.get("text_config"), dict):
        given = given["text_config"]  # of a model that sees pictures as well
    family = given.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise LanguageModelError(
            "this architecture is not supported", where=where, found=family, expected=", ".join(FAMILIES)
        )
    if given.get("quantization_config"):
        raise LanguageModelError(
            "weights that are quantized like this are not supported",
            where=where,
            found=given["quantization_config"],
            hint="take the model's float weights, or a GGUF file of it",
        )
    unsupported = [name for name, usual in _UNSUPPORTED.items() if given.get(name, usual) != usual]
    if unsupported:
        raise LanguageModelError("a setting of this model is not supported", where=where, found=unsupported[0])
    try:
        return _config(given, family)
    except _DAMAGED as error:
        raise ModelFileError("the configuration of the model cannot be used", where=where, found=repr(error)) from error


def _config(given: Mapping[str, Any], name: str) -> ModelConfig:
    family = FAMILIES[name]
    width, heads = int(_first(given, "width")), int(_first(given, "heads"))
    head_size = int(given.get("head_dim") or width // heads)
    scalar = given.get("query_pre_attn_scalar") if given.get("scale_attn_weights", True) else 1.0
    return ModelConfig(
        family=name,
        layers=tuple(_layers(given, family, head_size)),
        width=width,
        heads=heads,
        kv_heads=int(given.get("num_key_value_heads") or heads),
        head_size=head_size,
        vocabulary=int(given["vocab_size"]),
        context=context_of(given, int(_first(given, "context"))),
        epsilon=float(_first(given, "epsilon")),
        norm="rms" if "rms_norm_eps" in given else "layer",
        activation=_activation(given, family),
        gated=family.gated,
        parallel=family.parallel,
        is_tied=bool(given.get("tie_word_embeddings", name in _TIED)),
        embedding_scale=float(np.float32(width**0.5)) if family.scales_embedding else 1.0,
        attention_scale=None if scalar is None else float(scalar) ** -0.5,
        attention_softcap=given.get("attn_logit_softcapping"),
        final_softcap=given.get("final_logit_softcapping"),
        experts=_experts(given, family),
    )


# Families whose configurations leave out that head and embedding are one matrix.
_TIED = ("gemma", "gemma2", "gemma3_text", "gpt2", "smollm3")


def _first(given: Mapping[str, Any], what: str) -> Any:
    return given[next(name for name in _NUMBERS[what] if name in given or name == _NUMBERS[what][-1])]


def _activation(given: Mapping[str, Any], family: Family) -> Activation:
    if family.scales_embedding:
        return family.activation  # configurations of Gemma name another one than it has
    named = given.get("activation_function") or given.get("hidden_act")
    if isinstance(named, str) and named not in _ACTIVATIONS:
        expected = ", ".join(_ACTIVATIONS)
        raise LanguageModelError("this activation is not supported", found=named, expected=expected)
    return _ACTIVATIONS[named] if named else family.activation


def _experts(given: Mapping[str, Any], family: Family) -> Experts | None:
    count = next((given[name] for name in _NUMBERS["experts"] if given.get(name)), None)
    if not count:
        return None
    normalized = family.normalizes_experts
    is_normalized = bool(given.get("norm_topk_prob")) if normalized is None else normalized
    return Experts(int(count), int(given["num_experts_per_tok"]), is_normalized, family.shared_expert)


def _layers(given: Mapping[str, Any], family: Family, head_size: int) -> Iterator[LayerConfig]:
    count = int(_first(given, "layers"))
    if count > MOST_LAYERS:
        raise ValueError(f"{count} layers; at most {MOST_LAYERS} are read")
    window = given.get("sliding_window") if given.get("use_sliding_window", True) else None
    kinds = given.get("layer_types") or _kinds(given, family, count)
    turns = given.get("no_rope_layers") or [not family.unturned or (n + 1) % family.unturned > 0 for n in range(count)]
    has_places = "n_positions" in given  # learned ones, instead
    for number in range(count):
        is_local = kinds[number] == "sliding_attention"
        rope = scale_rope(given, head_size, kinds[number]) if turns[number] and not has_places else None
        yield LayerConfig(int(window) if is_local and window else None, rope)


def _kinds(given: Mapping[str, Any], family: Family, count: int) -> list[str]:
    """Return the kinds of attention of layers that the configuration does not list."""
    if not family.windowed or not given.get("sliding_window"):
        return ["full_attention"] * count
    pattern = int(given.get("sliding_window_pattern") or family.pattern) or count + 1
    return ["sliding_attention" if number % pattern else "full_attention" for number in range(1, count + 1)]
