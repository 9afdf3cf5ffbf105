"""A small Llama with quantized weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf_writer import Blocks
from tokenizers.pre_tokenizers import ByteLevel

WIDTH, HEADS, KV_HEADS, HIDDEN, LAYERS, CONTEXT = 256, 4, 2, 512, 2, 512
LETTERS = sorted(ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "th", "Ġth", "Ġthe"]
MERGES = ["t h", "Ġ th", "Ġth e"]
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": np.array([3, 3, 3, *[1] * (len(TOKENS) - 3)], np.int32),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
}


def llama_metadata(layers: int = LAYERS) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        **TOKENIZER,
    }


def llama_tensors(kind: str, seed: int = 0) -> dict[str, np.ndarray | Blocks]:
    """All matrices of one block type, the embedding of Q8_0."""
    rng = np.random.default_rng(seed)
    kv = WIDTH // HEADS * KV_HEADS
    tensors: dict[str, np.ndarray | Blocks] = {"token_embd.weight": Blocks(rng, (len(TOKENS), WIDTH), "Q8_0", 0.2)}
    for layer in range(LAYERS):
        shapes = {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (kv, WIDTH),
            "attn_v": (kv, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        for name, shape in shapes.items():
            tensors[f"blk.{layer}.{name}.weight"] = Blocks(rng, shape, kind, 0.3)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32)
    return {**tensors, "output_norm.weight": rng.uniform(0.5, 1.5, WIDTH).astype(np.float32)}
