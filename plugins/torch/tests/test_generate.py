"""`generate` of transformers' models through torch.compile(backend="kernelyard"): the tokens of eager PyTorch.

Two prompts of different lengths, the first with a row that is padded on the left, as batches of prompts are.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

import kernelyard as ky
from kernelyard.errors import PerformanceWarning

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-torch")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from kernelyard_torch.compiled_graph import CompiledGraph  # noqa: E402

VOCABULARY, PADDING, TOKENS = 60, 0, 6
SPECIAL = {"pad_token_id": PADDING, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, **SIZES, **SPECIAL}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **SPECIAL}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, **SPECIAL}
T5 |= {"decoder_start_token_id": PADDING}
GROUPED = {"num_key_value_heads": 2}


@dataclass(frozen=True)
class Family:
    """A class of models, what its configuration is given, and the kinds of cache that are tried."""

    name: str
    settings: dict[str, Any]
    caches: tuple[str, ...] = ("growing",)

    @property
    def stem(self) -> str:
        """The name of the family: what stands before its head."""
        return self.name.partition("For")[0].removesuffix("LMHeadModel")

    def make(self) -> Any:
        kind = {"Gemma3": "Gemma3Text"}.get(self.stem, self.stem)  # without images
        configuration = getattr(transformers, f"{kind}Config")(**self.settings)
        model = getattr(transformers, self.name)(configuration).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=(2 / weight[0].numel()) ** 0.5)  # tokens are to be far from ties
        return model


BOTH = ("growing", "static")
SLIDING = {"sliding_window": 8}  # less than the prompts and what is made of them
FAMILIES = [
    Family("LlamaForCausalLM", TEXT | GROUPED, BOTH),
    Family("MistralForCausalLM", TEXT | GROUPED | SLIDING, BOTH),
    Family("MixtralForCausalLM", TEXT | GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}, BOTH),
    Family("GPT2LMHeadModel", GPT, BOTH),
    Family("Qwen2ForCausalLM", TEXT | GROUPED, BOTH),
    Family("Qwen3ForCausalLM", TEXT | GROUPED | {"head_dim": 8}, BOTH),
    Family("Gemma2ForCausalLM", TEXT | GROUPED | SLIDING | {"head_dim": 8}, BOTH),
    Family("Gemma3ForCausalLM", TEXT | GROUPED | SLIDING | {"head_dim": 8}, BOTH),
    Family("PhiForCausalLM", TEXT, BOTH),
    Family("OPTForCausalLM", TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32}, BOTH),
    Family(
        "BloomForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4, **SPECIAL}, BOTH
    ),
    Family("FalconForCausalLM", TEXT, BOTH),
    Family("T5ForConditionalGeneration", T5, BOTH),
]
# The others take a few seconds each: grouped heads, a window, and experts are what the rest is made of.
QUICK = {("LlamaForCausalLM", "static"), ("MistralForCausalLM", "growing"), ("MixtralForCausalLM", "growing")}


def _cases() -> list[Any]:
    pairs = [(family, cache) for family in FAMILIES for cache in family.caches]
    return [
        pytest.param(f, c, id=f"{f.stem}-{c}", marks=() if (f.name, c) in QUICK else pytest.mark.slow) for f, c in pairs
    ]


def prompts() -> list[Any]:
    padded, whole = torch.randint(3, VOCABULARY, (2, 6)), torch.randint(3, VOCABULARY, (2, 11))
    padded[1, :2] = PADDING
    return [padded, whole]


def generated(model: Any, prompt: Any, cache: str) -> Any:
    settings: dict[str, Any] = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    if cache != "growing":
        settings["cache_implementation"] = cache
    mask = (prompt != PADDING).long()
    with torch.no_grad():
        return model.generate(prompt, attention_mask=mask, disable_compile=True, **settings)


@pytest.mark.parametrize(("family", "cache"), _cases())
def test_tokens_are_those_of_eager_pytorch(family: Family, cache: str, graphs: list[CompiledGraph]) -> None:
    eager = family.make()
    ours = copy.deepcopy(eager)
    ours.forward = torch.compile(ours.forward, backend="kernelyard")
    given = prompts()
    expected = [generated(eager, prompt, cache) for prompt in given]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PerformanceWarning)
        found = [generated(ours, prompt, cache) for prompt in given]
    assert graphs
    for tokens, others in zip(found, expected, strict=True):
        assert tokens.tolist() == others.tolist()


# --- rows that see nothing, which padding on the left makes -----------------------------------------------------------
HIDDEN_ROW = torch.ones(4, 4, dtype=torch.bool).tril()
HIDDEN_ROW[0] = False
MASKS = {
    "bool": HIDDEN_ROW,
    "float32": torch.zeros(4, 4).masked_fill(~HIDDEN_ROW, float("-inf")),
    "lowest": torch.zeros(4, 4).masked_fill(~HIDDEN_ROW, torch.finfo(torch.float32).min),
}


class Attention(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("mask", MASKS)
def test_rows_that_see_nothing(mask: str, graphs: list[CompiledGraph]) -> None:
    given = (*(torch.randn(1, 2, 4, 8) for _ in range(3)), MASKS[mask])
    expected = Attention()(*given)
    assert bool((expected[:, :, 0] == 0).all()) == (mask != "lowest")
    exe = ky.compile(Attention(), options={"torch": {"example_inputs": given}})
    found = torch.compile(Attention(), backend="kernelyard")(*given), torch.tensor(exe(*given).numpy())
    assert graphs
    for each in found:
        torch.testing.assert_close(each, expected, rtol=1e-5, atol=1e-5)
