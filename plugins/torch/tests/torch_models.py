"""Models that people use, small, with random weights and all of their structure: what each is given, and open sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch_cnns as cnns
from torch import nn
from torch.export import Dim

BATCH, LENGTH, TARGET = Dim("batch", min=2, max=8), Dim("length", min=2, max=24), Dim("target", min=2, max=24)
SAMPLES = Dim("samples", min=200, max=2000)
BOTH = {0: BATCH, 1: LENGTH}
VOCABULARY = 60
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Model:
    """make: the model, with any weights. inputs: of a batch and a length. dynamic: the sizes that may be open.

    pattern: what oneDNN runs at least once.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]
    dynamic: dict[str, dict[int, Any]]
    pattern: str = "dnnl.matmul"

    def with_random_weights(self) -> nn.Module:
        """The model for inference: weights that keep numbers in range, none of them zero, norms that do something."""
        model = self.make().eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=(2 / weight[0].numel()) ** 0.5)
                else:
                    weight.add_(0.1 * torch.randn_like(weight))
            for name, buffer in model.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    buffer.uniform_(0.5, 1.5)
        return model


def image(make: Callable[[], nn.Module], size: int = 32, name: str = "input", pattern: str = "dnnl.conv2d") -> Model:
    """A model of images."""
    return Model(make, lambda b, _: {name: torch.randn(b, 3, size, size)}, {name: {0: BATCH}}, pattern)


def tokens(batch: int, length: int) -> torch.Tensor:
    """Words; the last one is the end of the text."""
    words = torch.randint(3, VOCABULARY, (batch, length))
    words[:, -1] = 2
    return words


def visible(batch: int, length: int) -> torch.Tensor:
    """A mask that hides the end of the second text."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1, length - 2 :] = 0
    return mask


def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed: make test-torch")


def text(model: str, config: str, **settings: Any) -> Model:
    """A model of texts in `transformers`, by the names of its classes."""
    return Model(
        lambda: hub(model, config, **{**TEXT, **settings}),
        lambda b, s: {"input_ids": tokens(b, s), "attention_mask": visible(b, s)},
        {"input_ids": BOTH, "attention_mask": BOTH},
    )


def hub(model: str, config: str, **settings: Any) -> nn.Module:
    """A model of `transformers` without a cache between calls."""
    module = transformers()
    made = getattr(module, config)(**settings)
    made.use_cache = False
    return getattr(module, model)(made)


def vision(model: str, config: str, size: int = 32, pattern: str = "dnnl.matmul", **settings: Any) -> Model:
    """A model of images in `transformers`, by the names of its classes."""
    return image(lambda: hub(model, config, **settings), size, "pixel_values", pattern)


def clip() -> nn.Module:
    parts = {"text_config": {**TEXT, "projection_dim": 16}, "vision_config": {**VISION, "projection_dim": 16}}
    return hub("CLIPModel", "CLIPConfig", projection_dim=16, **parts)


WHISPER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 20,
    "max_target_positions": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def sound(batch: int, _: int) -> Inputs:
    return {"input_features": torch.randn(batch, 8, 40)}


def sam() -> nn.Module:
    small = {"mlp_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    image_encoder = {
        "hidden_size": 32,
        "output_channels": 16,
        "image_size": 64,
        "patch_size": 8,
        "num_pos_feats": 8,
        "window_size": 3,
        "global_attn_indexes": [1],
        **small,
    }
    prompts = {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4}
    decoder = {"hidden_size": 16, "iou_head_hidden_dim": 16, **small}
    return hub(
        *("SamModel", "SamConfig"),
        vision_config=image_encoder,
        prompt_encoder_config=prompts,
        mask_decoder_config=decoder,
    )


CNNS = {
    "resnet": image(cnns.resnet),
    "mobilenet_v2": image(cnns.mobilenet_v2),
    "mobilenet_v3": image(cnns.mobilenet_v3),
    "efficientnet": image(cnns.efficientnet),
    "densenet": image(cnns.densenet),
    "inception": image(cnns.inception, 40),
    "shufflenet": image(cnns.shufflenet),
    "squeezenet": image(cnns.squeezenet),
    "unet": Model(cnns.UNet, lambda b, _: {"x": torch.randn(b, 3, 18, 22)}, {"x": {0: BATCH}}, "dnnl.conv2d"),
    "yolo": Model(cnns.YOLO, lambda b, _: {"x": torch.randn(b, 3, 32, 48)}, {"x": {0: BATCH}}, "dnnl.conv2d"),
}

TRANSFORMERS = {
    "bert": text("BertForSequenceClassification", "BertConfig"),
    "distilbert": text("DistilBertForMaskedLM", "DistilBertConfig", dim=32, hidden_dim=64, n_layers=2, n_heads=4),
    "roberta": text("RobertaForMaskedLM", "RobertaConfig"),
    "gpt2": text("GPT2LMHeadModel", "GPT2Config", n_positions=40),
    "llama": text("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2),
    "qwen2": text("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2),
    "qwen3": text("Qwen3ForCausalLM", "Qwen3Config", num_key_value_heads=2, head_dim=8),
    "mistral": text("MistralForCausalLM", "MistralConfig", num_key_value_heads=2, sliding_window=4),
    "t5": Model(
        lambda: hub(
            *("T5ForConditionalGeneration", "T5Config"),
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
        ),
        lambda b, s: {
            "input_ids": tokens(b, s),
            "attention_mask": visible(b, s),
            "decoder_input_ids": tokens(b, s // 2 + 2),
        },
        {"input_ids": BOTH, "attention_mask": BOTH, "decoder_input_ids": {0: BATCH, 1: TARGET}},
    ),
    "vit": vision("ViTForImageClassification", "ViTConfig", **VISION),
    "clip": Model(
        clip,
        lambda b, s: {
            "input_ids": tokens(b, s),
            "pixel_values": torch.randn(b, 3, 32, 32),
            "attention_mask": visible(b, s),
        },
        {"input_ids": BOTH, "pixel_values": {0: BATCH}, "attention_mask": BOTH},
    ),
    "whisper_encoder": Model(
        lambda: hub("WhisperModel", "WhisperConfig", **WHISPER).get_encoder(), sound, {"input_features": {0: BATCH}}
    ),
    "whisper": Model(
        lambda: hub("WhisperForConditionalGeneration", "WhisperConfig", **WHISPER),
        lambda b, s: {**sound(b, s), "decoder_input_ids": tokens(b, s)},
        {"input_features": {0: BATCH}, "decoder_input_ids": BOTH},
    ),
    "wav2vec2": Model(
        lambda: hub(
            *("Wav2Vec2ForCTC", "Wav2Vec2Config"),
            **{**TEXT, "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 2)},
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=4,
        ),
        lambda b, s: {"input_values": torch.randn(b, 40 * s)},
        {"input_values": {0: BATCH, 1: SAMPLES}},
    ),
    "convnext": vision(
        *("ConvNextForImageClassification", "ConvNextConfig", 32, "dnnl.conv2d"),
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 2, 1],
    ),
    "sam": Model(
        sam,
        lambda b, _: {"pixel_values": torch.randn(b, 3, 64, 64), "input_points": 64 * torch.rand(b, 1, 2, 2)},
        {"pixel_values": {0: BATCH}, "input_points": {0: BATCH}},
    ),
    # Its loop over the sequence is Python's, which is taken apart step by step: one length.
    "mamba": Model(
        lambda: hub("MambaForCausalLM", "MambaConfig", **{**TEXT, "state_size": 4, "time_step_rank": 4}),
        lambda b, _: {"input_ids": tokens(b, 6)},
        {"input_ids": {0: BATCH}},
    ),
}

MODELS = {**CNNS, **TRANSFORMERS}
