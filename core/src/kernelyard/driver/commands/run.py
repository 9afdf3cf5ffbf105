"""`kernelyard run MODEL`: run an artifact or a model on NumPy files, or on random numbers."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from kernelyard.driver.commands.common import (
    compile_options,
    dim_option,
    json_option,
    make_feeds,
    open_executable,
    print_json,
    threads_option,
)


@click.command("run", help=__doc__)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-i", "--input", "files", multiple=True, metavar="NAME=FILE.npy", help="Data of an input (default: random)."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for the results as .npy files.")
@dim_option
@threads_option
@compile_options
@json_option
def command(
    model: Path,
    files: tuple[str, ...],
    output: Path | None,
    dim_values: tuple[str, ...],
    threads: int | None,
    target: str,
    backends: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run once."""
    exe = open_executable(model, target, backends, settings, threads)
    results = {name: np.asarray(t) for name, t in exe.run(make_feeds(exe, files, dim_values)).items()}
    facts = {name: _facts(array) for name, array in results.items()}
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        for index, (name, array) in enumerate(results.items()):
            path = output / f"{index}.npy"  # output names may hold anything, file names may not
            np.save(path, array, allow_pickle=False)
            facts[name]["file"] = str(path)
    if as_json:
        print_json(facts)
        return
    for name, fact in facts.items():
        click.echo(f"{name}: " + ", ".join(f"{key} {value}" for key, value in fact.items()))


def _facts(array: np.ndarray) -> dict[str, object]:
    facts: dict[str, object] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.size:
        numbers = array.astype(np.float64)
        facts |= {"min": float(numbers.min()), "mean": float(numbers.mean()), "max": float(numbers.max())}
    return facts
