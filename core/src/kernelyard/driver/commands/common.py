"""What several commands need: options, feeds for a model, and printing for people or for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import numpy as np

from kernelyard import dims, dtypes
from kernelyard.errors import InputNameError, InputShapeError, KernelyardError

if TYPE_CHECKING:
    from kernelyard.runtime.executable import Executable

F = TypeVar("F", bound=Callable[..., Any])
ARTIFACT_SUFFIX = ".kyar"

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
dim_option = click.option(
    "--dim", "dim_values", multiple=True, metavar="NAME=N", help="Value of a symbolic dim (default 1)."
)
threads_option = click.option("--threads", type=click.IntRange(1), help="Threads that a run may use.")


def compile_options(function: F) -> F:
    """Add --target, --backends and --option."""
    for option in (
        click.option(
            "--option", "settings", multiple=True, metavar="BACKEND.KEY=VALUE", help="An option of a backend."
        ),
        click.option("--backends", default="auto", show_default=True, help="Names in order of preference, or auto."),
        click.option("--target", default="cpu", show_default=True, help="cpu or cuda."),
    ):
        function = option(function)
    return function


def backend_list(text: str) -> list[str] | str:
    """`auto`, or the names of a comma-separated list."""
    return text if text == "auto" else [name.strip() for name in text.split(",") if name.strip()]


def backend_options(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`dnnl.threads=2` as {"dnnl": {"threads": 2}}; values are JSON where they read as such, else text."""
    options: dict[str, dict[str, Any]] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        backend, dot, key = path.partition(".")
        if not (equals and dot and backend and key):
            raise click.BadParameter(f"{setting!r}; write BACKEND.KEY=VALUE", param_hint="--option")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        options.setdefault(backend, {})[key] = value
    return options


def open_executable(path: Path, target: str, backends: str, settings: Sequence[str], threads: int | None) -> Executable:
    """Load an artifact, or compile a model."""
    if path.suffix == ARTIFACT_SUFFIX:
        from kernelyard.runtime.loader import load

        return load(path, threads=threads)
    from kernelyard.driver.compile import compile as compile_model

    exe = compile_model(path, target=target, backends=backend_list(backends), options=backend_options(settings))
    exe.threads = threads
    return exe


def read_dims(dim_values: Sequence[str]) -> dict[str, int]:
    """`n=4` as {"n": 4}."""
    values: dict[str, int] = {}
    for item in dim_values:
        name, equals, text = item.partition("=")
        if not (equals and name and text.isdigit()):
            raise click.BadParameter(f"{item!r}; write NAME=N", param_hint="--dim")
        values[name] = int(text)
    return values


def make_feeds(
    exe: Executable, files: Sequence[str], dim_values: Sequence[str], seed: int = 0
) -> dict[str, np.ndarray]:
    """Feeds for a model: the given NumPy files, and random numbers for the rest."""
    given = dict(_read_array(item) for item in files)
    unknown = set(given) - {info.name for info in exe.inputs}
    if unknown:
        raise InputNameError(
            f"no input is called {sorted(unknown)[0]!r}", expected=", ".join(i.name for i in exe.inputs)
        )
    values, random = read_dims(dim_values), np.random.default_rng(seed)
    return {info.name: given.get(info.name, _random(random, info.shape, info.dtype, values)) for info in exe.inputs}


def _read_array(item: str) -> tuple[str, np.ndarray]:
    name, equals, path = item.partition("=")
    if not equals:
        raise click.BadParameter(f"{item!r}; write NAME=FILE.npy", param_hint="--input")
    try:
        return name, np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise KernelyardError(
            f"the file for input {name!r} cannot be read", where=path, found=error, expected="a .npy file"
        ) from error


def _random(
    random: np.random.Generator, shape: Sequence[int | str], dtype: str, values: Mapping[str, int]
) -> np.ndarray:
    sizes: list[int] = []
    for dim in shape:
        parsed = dim if isinstance(dim, int) else dims.parse(dim)
        sizes.append(dims.evaluate(parsed, {**dict.fromkeys(dims.symbols_of(parsed), 1), **values}))
    if any(size < 0 for size in sizes):
        raise InputShapeError("the given --dim values make a negative size", found=str(sizes))
    if dtypes.is_float(dtype):
        return random.standard_normal(sizes).astype(dtypes.to_numpy(dtype))
    return random.integers(0, 2, sizes).astype(dtypes.to_numpy(dtype))


def print_json(value: object) -> None:
    """Print JSON for machines."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
