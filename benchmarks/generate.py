"""transformers' `generate` with torch.compile(backend="kernelyard") beside eager PyTorch, in turns in one process.

    python benchmarks/generate.py [--families llama gpt2 ...] [--caches growing static] [--tokens 48] [--threads 1]
                                  [--hidden 256] [--layers 4] [--rounds 5] [--json FILE]

Small models with random weights, greedy decoding of two prompts of different lengths. Printed for each family and
cache: whether all tokens are eager's, how many calls fell back to eager mode, seconds of the first generation
(compiling), and the time of eager mode over ours once both prompts were seen, above 1 where ours is faster.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from kernelyard.errors import PerformanceWarning

PROMPTS = (12, 20)
VOCABULARY = 1000
POSITIONS = 512
CACHES = ("growing", "static")
# The names that configurations have for the same numbers.
_USUAL = {"hidden": "hidden_size", "inner": "intermediate_size", "layers": "num_hidden_layers"}
_USUAL |= {"heads": "num_attention_heads", "positions": "max_position_embeddings"}
_GPT2 = {"hidden": "n_embd", "inner": "n_inner", "layers": "n_layer", "heads": "n_head", "positions": "n_positions"}
_OPT = {**_USUAL, "inner": "ffn_dim"}
_FEW_KEYS = {"num_key_value_heads": 2}


@dataclass(frozen=True)
class Family:
    """A class of models. names: its own for the numbers of `Size`. more: settings of its own."""

    model: str
    configuration: str
    names: dict[str, str]
    more: dict[str, Any]


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", _USUAL, _FEW_KEYS),
    "mistral": Family("MistralForCausalLM", "MistralConfig", _USUAL, {**_FEW_KEYS, "sliding_window": 32}),
    "gemma2": Family("Gemma2ForCausalLM", "Gemma2Config", _USUAL, {**_FEW_KEYS, "head_dim": 64, "sliding_window": 32}),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", _USUAL, _FEW_KEYS),
    "phi": Family("PhiForCausalLM", "PhiConfig", _USUAL, {}),
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", _GPT2, {"bos_token_id": 1, "eos_token_id": 2}),
    "gpt_neox": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", _USUAL, {}),
    "opt": Family("OPTForCausalLM", "OPTConfig", _OPT, {"word_embed_proj_dim": 0}),
}


@dataclass(frozen=True)
class Row:
    """Hold the measurements of a family with one kind of cache; eager, ours: seconds."""

    family: str
    cache: str
    is_equal: bool
    fallbacks: int
    first_seconds: float
    eager: float
    ours: float

    @property
    def ratio(self) -> float:
        """The time of eager mode over ours."""
        return self.eager / self.ours

    @property
    def text(self) -> str:
        """The row as it is printed."""
        tokens = "equal" if self.is_equal else "DIFFERENT"
        facts = f"tokens {tokens}, {self.fallbacks} fallbacks, first {self.first_seconds:5.1f} s"
        return f"{self.family:10} {self.cache:8} {facts}  eager/ours {self.ratio:5.2f}"


def make_model(family: Family, hidden: int, layers: int) -> Any:
    """Make a model with random weights, the same in each run."""
    numbers = {"hidden": hidden, "inner": 2 * hidden, "layers": layers, "heads": 4, "positions": POSITIONS}
    settings = {family.names[name]: number for name, number in numbers.items()} | family.more
    if "word_embed_proj_dim" in settings:
        settings["word_embed_proj_dim"] = hidden
    configuration = getattr(transformers, family.configuration)(vocab_size=VOCABULARY, **settings)
    torch.manual_seed(0)
    return getattr(transformers, family.model)(configuration).eval()


def generation(model: Any, prompt: torch.Tensor, tokens: int, cache: str) -> torch.Tensor:
    """Generate so many tokens after a prompt, the likeliest each time."""
    settings: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    settings |= {"pad_token_id": 0, "eos_token_id": None, "disable_compile": True}
    if cache == "static":
        settings["cache_implementation"] = "static"
    with torch.no_grad():
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)


def measure(name: str, cache: str, args: argparse.Namespace) -> Row:
    """Compare the tokens of both prompts, then time the shorter one in turns."""
    torch._dynamo.reset()
    eager = make_model(FAMILIES[name], args.hidden, args.layers)
    ours = copy.deepcopy(eager)
    ours.forward = torch.compile(ours.forward, backend="kernelyard")
    prompts = [torch.randint(3, VOCABULARY, (1, length)) for length in PROMPTS]
    expected = [generation(eager, prompt, args.tokens, cache) for prompt in prompts]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = time.perf_counter()
        found = [generation(ours, prompt, args.tokens, cache) for prompt in prompts]
        first = time.perf_counter() - began
        calls: dict[str, Callable[[], Any]] = {
            "eager": lambda: generation(eager, prompts[0], args.tokens, cache),
            "ours": lambda: generation(ours, prompts[0], args.tokens, cache),
        }
        best = dict.fromkeys(calls, math.inf)
        for _ in range(args.rounds):
            for engine, call in calls.items():
                start = time.perf_counter()
                call()
                best[engine] = min(best[engine], time.perf_counter() - start)
    is_equal = all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    fallbacks = sum(issubclass(each.category, PerformanceWarning) for each in caught)
    return Row(name, cache, is_equal, fallbacks, first, best["eager"], best["ours"])


def main() -> None:
    """Measure the families."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--caches", nargs="+", default=list(CACHES), choices=CACHES)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    rows: list[Row] = []
    for name in args.families:
        for cache in args.caches:
            rows.append(measure(name, cache, args))
            print(rows[-1].text, flush=True)
    for cache in args.caches:
        ratios = [row.ratio for row in rows if row.cache == cache]
        print(f"{cache}: geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")
    if args.json:
        facts = [asdict(row) | {"ratio": row.ratio} for row in rows]
        args.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
