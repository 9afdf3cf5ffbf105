"""`kernelyard chat`: talk to a language model in the terminal."""

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
@click.option("-p", "--prompt", help="Ask this alone, and end.")
@click.option("--system", help="What the model is told beforehand.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=512, show_default=True, help="Length of an answer.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 chooses the likeliest token.")
@click.option("--top-k", type=int, default=0, help="Only so many tokens (0: all).")
@click.option("--top-p", type=float, default=1.0, help="Only the likeliest tokens that have this share.")
@click.option("--min-p", type=float, default=0.0, help="None less likely than this share of the likeliest.")
@click.option("--seed", type=int, help="Equal seeds give equal answers.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End an answer here; may be repeated.")
@click.option("--draft", type=click.IntRange(0), default=0, help="Tokens guessed at a time from the text so far.")
@click.option("--threads", type=click.IntRange(1), help="Threads that a run may use (default: all).")
@CACHE_DTYPE
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each answer.")
def command(
    model: Path,
    prompt: str | None,
    system: str | None,
    threads: int | None,
    cache_dtype: CacheDtype | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Talk to MODEL: a .gguf file, a folder of a model, or a .kyar artifact. An empty line ends the talk."""
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
    """Yield what is asked: the prompt alone, else line by line."""
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
