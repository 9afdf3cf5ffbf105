"""`kernelyard bench-llm`: how fast a language model reads and writes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from kernelyard_llm.cache_option import CACHE_DTYPE

if TYPE_CHECKING:
    from kernelyard_llm.configuration import CacheDtype
    from kernelyard_llm.model import LanguageModel


@dataclass(frozen=True)
class Measured:
    """The median of several rounds. gigabytes_per_second: of weights that each token reads."""

    prompt_tokens: int
    new_tokens: int
    load_seconds: float
    time_to_first_token: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    gigabytes_per_second: float


@click.command("bench-llm")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--prompt-tokens", type=click.IntRange(1), default=256, show_default=True, help="Length of the prompt.")
@click.option("--new-tokens", type=click.IntRange(2), default=128, show_default=True, help="Length of the answer.")
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Measured rounds, after one that warms up."
)
@click.option("--threads", type=click.IntRange(1), help="Threads that a run may use (default: all).")
@CACHE_DTYPE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: Path,
    prompt_tokens: int,
    new_tokens: int,
    rounds: int,
    threads: int | None,
    cache_dtype: CacheDtype | None,
    as_json: bool,
) -> None:
    """Measure MODEL: time to the first token, tokens per second, and the bytes of weights that are read for them."""
    from kernelyard_llm.loading import load

    begin = time.perf_counter()
    loaded = load(model, threads=threads, context=prompt_tokens + new_tokens, cache_dtype=cache_dtype)
    measured = measure(loaded, prompt_tokens, new_tokens, rounds, time.perf_counter() - begin)
    if as_json:
        click.echo(json.dumps({"model": str(model), **asdict(measured)}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "value", title=str(model))
    for name, value in asdict(measured).items():
        table.add_row(name.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    Console().print(table)


def measure(model: LanguageModel, prompt_tokens: int, new_tokens: int, rounds: int, load_seconds: float) -> Measured:
    """Generate as often as asked, after one round in which everything is prepared."""
    random = np.random.default_rng(0)
    ids = random.integers(0, model.config.vocabulary, prompt_tokens).tolist()
    stats = []
    for number in range(rounds + 1):
        model.generate(ids, new_tokens, ignore_eos=True)
        assert model.stats is not None
        stats += [model.stats] if number else []
    decode = _median([each.decode_tokens_per_second for each in stats])
    return Measured(
        prompt_tokens,
        new_tokens,
        load_seconds,
        _median([each.time_to_first_token for each in stats]),
        _median([each.prefill_tokens_per_second for each in stats]),
        decode,
        decode * model.description.bytes_per_token / 1e9,
    )


def _median(numbers: Sequence[float]) -> float:
    return float(np.median(numbers))
