"""Know what families of models differ in, beside what their files say: one table for all formats."""

from __future__ import annotations

from dataclasses import dataclass

from kernelyard_llm.configuration import Activation


@dataclass(frozen=True)
class Family:
    """Describe a family of models.

    activation: where a file names none. gated: the feed-forward network multiplies two projections. parallel: attention
    and feed-forward network read the same norm. scales_embedding: by the square root of the width. windowed: all layers
    see a window where the file has one, but for every `pattern`-th (0: for none). local_base: of the rotary positions
    of layers that see a window, where they have their own. unturned: every so many-th layer has no rotary positions
    where the file does not say (0: none). normalizes_experts: their weights sum to 1; None: the file says.

    Layouts of weights. less_one: norms are stored less one (HuggingFace). by_input: matrices are stored by input
    (HuggingFace). interleaved: pairs that turn lie beside each other (GGUF); here they lie half a head apart.
    """

    activation: Activation = "silu"
    gated: bool = True
    parallel: bool = False
    scales_embedding: bool = False
    windowed: bool = False
    pattern: int = 0
    local_base: float | None = None
    unturned: int = 0
    normalizes_experts: bool | None = None
    shared_expert: bool = False
    less_one: bool = False
    by_input: bool = False
    interleaved: bool = False


_LLAMA = Family(interleaved=True)
_GEMMA = Family("gelu_tanh", scales_embedding=True, less_one=True)

# By the name that HuggingFace gives them ("model_type").
FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "smollm3": Family(interleaved=True, unturned=4),
    "mistral": Family(windowed=True, interleaved=True),
    "mixtral": Family(windowed=True, interleaved=True, normalizes_experts=True),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen2_moe": Family(shared_expert=True),
    "qwen3_moe": Family(),
    "olmo2": Family(),
    "olmoe": Family(),
    "gemma": _GEMMA,
    "gemma2": Family("gelu_tanh", scales_embedding=True, less_one=True, windowed=True, pattern=2),
    "gemma3_text": Family(
        "gelu_tanh", scales_embedding=True, less_one=True, windowed=True, pattern=6, local_base=10000.0
    ),
    "phi": Family("gelu_tanh", gated=False, parallel=True),
    "phi3": Family(windowed=True),
    "gpt2": Family("gelu_tanh", gated=False, by_input=True),
}
# By the name that GGUF gives them ("general.architecture"). Its "llama" are Mistral and Mixtral as well.
GGUF_NAMES: dict[str, str] = {
    **{name: name for name in ("llama", "smollm3", "qwen2", "qwen3", "olmo2", "olmoe", "gemma", "gemma2")},
    **{name: name for name in ("phi3", "gpt2")},
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gemma3": "gemma3_text",
    "phi2": "phi",
}
