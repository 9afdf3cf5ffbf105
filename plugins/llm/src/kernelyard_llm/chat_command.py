"""`kernelyard chat`: chat with a language model in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard_llm.cache_option import CACHE_DTYPE

if TYPE_CHECKING:
    from kernelyard_llm.configuration import CacheDtype


@click.command("chat")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-p", "--prompt", help="Answer one prompt and exit.")
@click.option("--system", help="The system message.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=512, show_default=True, help="Maximum length.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy decoding.")
@click.option("--top-k", type=int, default=0, help="Keep the K most likely tokens (0: all).")
@click.option("--top-p", type=float, default=1.0, help="Nucleus sampling: total probability of kept tokens.")
@click.option("--min-p", type=float, default=0.0, help="Drop tokens below this fraction of the highest probability.")
@click.option("--seed", type=int, help="Seed of the random generator.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop generation at this string; repeatable.")
@click.option("--draft", type=click.IntRange(0), default=0, help="Draft tokens per step, by n-gram lookup.")
@click.option("--threads", type=click.IntRange(1), help="Number of threads (default: all processors).")
@CACHE_DTYPE
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per answer.")
def command(
    model: Path,
    prompt: str | None,
    system: str | None,
    threads: int | None,
    cache_dtype: CacheDtype | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Chat with MODEL: a .gguf file, a HuggingFace folder, or a .kyar artifact. An empty line exits."""
    from kernelyard_llm.loading import load

    loaded = load(model, threads=threads, cache_dtype=cache_dtype)
    messages = [{"role": "system", "content": system}] if system else []
    for question in _questions(prompt):
        messages.append({"role": "user", "content": question})
        pieces = []
        for piece in loaded.stream_chat(messages, **how):
            pieces.append(piece)
            if not as_json:
                click.echo(piece, nl=False)
                sys.stdout.flush()
        answer = {"role": "assistant", "content": "".join(pieces)}
        messages.append(answer)
        click.echo(json.dumps({**answer, "stats": loaded.stats.to_json() if loaded.stats else None}) if as_json else "")


def _questions(prompt: str | None) -> Iterator[str]:
    """Yield the prompt alone, or else lines of standard input until an empty one."""
    if prompt is not None:
        yield prompt
        return
    while True:
        if sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line
