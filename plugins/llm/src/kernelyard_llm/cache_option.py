"""The option of commands for the dtype of cached keys and values."""

from __future__ import annotations

import click

from kernelyard_llm.configuration import CACHE_DTYPES

CACHE_DTYPE = click.option(
    "--cache-dtype",
    type=click.Choice(CACHE_DTYPES),
    help="Data type of the KV cache (default: float16, or float32 where all weights are float32).",
)
