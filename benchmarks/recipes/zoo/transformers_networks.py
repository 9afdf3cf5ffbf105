"""Networks of transformers, from configurations: few layers, each of a realistic shape."""

from __future__ import annotations

from recipes.zoo import torchvision_operators  # noqa: F401  isort: skip (declares what torchvision expects)

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

from recipes.zoo.torch_models import Made

WORDS, LENGTH = 8000, 128
# What most configurations know, by these names or by aliases of them.
TEXT: Mapping[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "vocab_size": WORDS,
}
# Each layer of an encoder and a decoder.
PAIR: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 384,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 6),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 1536),
}
T5: Mapping[str, Any] = {"vocab_size": WORDS, "d_model": 384, "d_ff": 1024, "d_kv": 64, "num_layers": 2, "num_heads": 6}
SPEECH: Mapping[str, Any] = {key: value for key, value in TEXT.items() if key != "vocab_size"}
GROUPED: Mapping[str, Any] = {"num_key_value_heads": 2, "head_dim": 64}
# What a configuration needs beside its kind's common settings.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "albert": {"embedding_size": 128},
    "big_bird": {"attention_type": "original_full"},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "layoutlm": {},
    "mobilebert": {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 4, "intermediate_size": 512},
    "modernbert": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    "squeezebert": {"embedding_size": 384},
    "xlnet": {"d_model": 384, "n_layer": 3, "n_head": 6, "d_inner": 1536},
    "codegen": {"hidden_size": 512, "num_attention_heads": 8, "rotary_dim": 32},
    "gpt_bigcode": {"multi_query": True},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "num_hidden_layers": 4, "num_heads": 6},
    "gptj": {"rotary_dim": 32},
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "granite", "llama", "mistral", "qwen3"), GROUPED),
    **{name: {"pad_token_id": 0} for name in ("phi", "phi3", "olmo2", "starcoder2")},
    **{name: {"pad_token_id": 0, "num_key_value_heads": 2} for name in ("stablelm", "qwen2")},
    "nemotron": {"pad_token_id": 0, **GROUPED},
    "cohere": {"pad_token_id": 0},
    "opt": {"ffn_dim": 1536, "word_embed_proj_dim": 384},
    "xglm": {"d_model": 384, "num_layers": 3, "attention_heads": 6, "ffn_dim": 1536},
    "mamba2": {"num_heads": 12, "head_dim": 64, "expand": 2, "state_size": 64, "n_groups": 1, "chunk_size": 64},
    "recurrent_gemma": {"lru_width": 384, "block_types": ["recurrent", "recurrent", "attention"]},
    "rwkv": {"attention_hidden_size": 384},
}
PAIRS = ("bart", "blenderbot-small", "m2m_100", "marian", "pegasus")
WAVES = ("data2vec-audio", "hubert", "sew", "unispeech", "wav2vec2", "wav2vec2-conformer", "wavlm")
CAUSAL = (
    *("bloom", "codegen", "cohere", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neo"),
    *("gpt_neox", "gptj", "granite", "llama", "mistral", "mpt", "nemotron", "olmo2", "opt", "phi", "phi3"),
    *("qwen2", "qwen3", "stablelm", "starcoder2", "xglm", "falcon_mamba", "mamba", "mamba2"),
    *("recurrent_gemma", "rwkv"),
)


class _Named(nn.Module):
    """A network that is called with names; what it returns is a tuple."""

    def __init__(self, network: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *feeds: torch.Tensor) -> Any:
        results = self.network(**dict(zip(self.names, feeds, strict=True)), return_dict=False)
        return results[0] if isinstance(results, tuple) else results


def _words(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, WORDS, (1, length))


def _network(architecture: str, settings: Mapping[str, Any]) -> nn.Module:
    config = transformers.AutoConfig.for_model(architecture, **{**settings, **SETTINGS.get(architecture, {})})
    return transformers.AutoModel.from_config(config)


IMAGE = ("pixel_values",)
FEW = {"num_hidden_layers": 3}
SERIES = {"num_input_channels": 7, "context_length": 512, "patch_length": 16, "patch_stride": 8}
LISTENERS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
PICTURE = (1, 3, 224, 224)


class Special(NamedTuple):
    """Settings of a configuration, the names of a network's inputs, and the shape of the first; another is words."""

    settings: Mapping[str, Any]
    names: tuple[str, ...]
    shape: tuple[int, ...]


def _backbone() -> transformers.ResNetConfig:
    stages: Any = {"out_features": ["stage4"]}  # a property of all backbones, which ResNetConfig does not name
    widths = [64, 128, 256, 512]
    return transformers.ResNetConfig(depths=[2, 2, 2, 2], layer_type="basic", hidden_sizes=widths, **stages)


def _detector() -> Mapping[str, Any]:
    without = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    return {**without, "backbone_config": _backbone(), "encoder_layers": 2, "decoder_layers": 2}


SMALL = {"hidden_size": 384, "num_attention_heads": 6}
SPECIAL: Mapping[str, Special] = {
    "audio-spectrogram-transformer": Special({**SPEECH, "max_length": 256}, ("input_values",), (1, 256, 128)),
    "speech_to_text": Special(
        {**PAIR, "input_feat_per_channel": 80}, ("input_features", "decoder_input_ids"), (1, 300, 80)
    ),
    "whisper": Special(
        {**PAIR, **LISTENERS, "max_source_positions": 500}, ("input_features", "decoder_input_ids"), (1, 80, 1000)
    ),
    "univnet": Special({}, ("input_features",), (1, 40, 100)),
    "clip_vision_model": Special(SPEECH, IMAGE, PICTURE),
    "siglip_vision_model": Special(SPEECH, IMAGE, PICTURE),
    "convnext": Special({"depths": [2, 2, 2, 2], "hidden_sizes": [48, 96, 192, 384]}, IMAGE, PICTURE),
    "cvt": Special({"depth": [1, 1, 2]}, IMAGE, PICTURE),
    "deit": Special(SPEECH, IMAGE, PICTURE),
    "dinov2": Special({**FEW, **SMALL, "image_size": 224}, IMAGE, PICTURE),
    "vit": Special(SPEECH, IMAGE, PICTURE),
    "vit_mae": Special({**SPEECH, "mask_ratio": 0.0}, IMAGE, PICTURE),
    "yolos": Special({**SPEECH, "image_size": [256, 320]}, IMAGE, (1, 3, 256, 320)),
    "detr": Special(_detector(), IMAGE, (1, 3, 256, 320)),
    "dpt": Special(
        {**SPEECH, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "image_size": 224}, IMAGE, PICTURE
    ),
    "glpn": Special({"depths": [1, 1, 1, 1]}, IMAGE, PICTURE),
    "poolformer": Special({"depths": [1, 1, 2, 1]}, IMAGE, PICTURE),
    "regnet": Special({"hidden_sizes": [64, 128, 256, 512], "depths": [1, 2, 3, 1]}, IMAGE, PICTURE),
    "segformer": Special({"depths": [1, 1, 1, 1]}, IMAGE, PICTURE),
    "swin2sr": Special(
        {"depths": [2, 2], "num_heads": [6, 6], "embed_dim": 60, "image_size": 64}, IMAGE, (1, 3, 64, 64)
    ),
    "videomae": Special({**FEW, **SMALL, "intermediate_size": 1536, "num_frames": 8}, IMAGE, (1, 8, 3, 224, 224)),
    "patchtst": Special(SERIES, ("past_values",), (1, 512, 7)),
    "patchtsmixer": Special({**SERIES, "d_model": 64}, ("past_values",), (1, 512, 7)),
}


def make(architecture: str) -> Made:
    """Return the network, with words, an image, a second of sound, or a series."""
    words = _words()
    if special := SPECIAL.get(architecture):
        others = [_words(32) for _ in special.names[1:]]
        return _Named(_network(architecture, special.settings), special.names), (torch.randn(special.shape), *others)
    if architecture == "vits":
        letters = torch.randint(1, 60, (1, 40))
        return _Named(_network(architecture, {"vocab_size": 64}), ("input_ids",)), (letters,)
    if architecture in WAVES:
        return _Named(_network(architecture, SPEECH), ("input_values",)), (torch.randn(1, 16000),)
    if architecture in PAIRS:
        network = _network(architecture, {**PAIR, "pad_token_id": 0})
        return _Named(network, ("input_ids", "decoder_input_ids")), (words, _words(32))
    if architecture in ("t5", "mt5"):
        return _Named(_network(architecture, T5), ("input_ids", "decoder_input_ids")), (words, _words(32))
    caches = {"use_cache": False} if architecture in CAUSAL else {}
    network = _network(architecture, {**TEXT, **caches})
    masks = () if architecture in ("fnet", "mamba", "mamba2", "falcon_mamba", "rwkv") else ("attention_mask",)
    return _Named(network, ("input_ids", *masks)), (words, *(torch.ones_like(words) for _ in masks))
