"""`kernelyard run`: one run, for looking at results or keeping them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelyard.cli.feeds import feeds_options, make_feeds
from kernelyard.cli.model_files import open_executable
from kernelyard.cli.options import CompileOptions, compile_options, dim_option, json_option, threads_option
from kernelyard.cli.output import print_json
from kernelyard.cli.progress import Progress
from kernelyard.errors import ExecutionError

if TYPE_CHECKING:
    import numpy as np


@click.command("run")
@click.argument("model", type=click.Path(path_type=Path))
@feeds_options
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), help="Folder for the results: 0.npy, 1.npy, ..."
)
@dim_option
@threads_option
@compile_options
@json_option
def command(
    model: Path,
    feeds: dict[str, np.ndarray],
    folder: Path | None,
    dim_values: tuple[str, ...],
    threads: int | None,
    how: CompileOptions,
    as_json: bool,
) -> None:
    """Run MODEL, an artifact or a model to be compiled, once, on files or on random numbers."""
    with Progress(f"running {model}"):
        exe = open_executable(model, how, threads)
        results = {name: tensor.numpy() for name, tensor in exe.run(make_feeds(exe, feeds, dim_values)).items()}
    facts = {name: _describe_tensor(array) for name, array in results.items()}
    if folder is not None:
        for name, path in _save(results, folder).items():
            facts[name]["file"] = path
    if as_json:
        print_json(facts)
        return
    for name, fact in facts.items():
        click.echo(f"{name}: " + ", ".join(f"{key} {_text(value)}" for key, value in fact.items()))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _save(results: dict[str, np.ndarray], folder: Path) -> dict[str, str]:
    """Write one file per result; output names may hold anything and file names may not, so files have numbers."""
    import numpy as np

    paths: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for index, (name, array) in enumerate(results.items()):
            np.save(folder / f"{index}.npy", array, allow_pickle=False)
            paths[name] = str(folder / f"{index}.npy")
    except OSError as error:
        raise ExecutionError(f"the results cannot be written to {folder}", found=error.strerror or error) from error
    return paths


def _describe_tensor(array: np.ndarray) -> dict[str, object]:
    facts: dict[str, object] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.size:
        numbers = array.astype("float64")
        facts |= {"min": float(numbers.min()), "mean": float(numbers.mean()), "max": float(numbers.max())}
    return facts
