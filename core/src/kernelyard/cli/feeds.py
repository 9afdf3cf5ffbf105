"""Make feeds for a model: arrays from files, and random numbers for the other inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelyard.errors import ExecutionError, InputNameError, InputShapeError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from kernelyard.runtime.execute.executable import Executable


def feeds_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --input and --feeds to a command; it gets the arrays of both as `feeds`, by the names of inputs."""

    @click.option(
        "-i", "--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input (default: random numbers)."
    )
    @click.option(
        "--feeds", "feeds_file", type=click.Path(path_type=Path), metavar="FILE.npz", help="Several inputs, by name."
    )
    @functools.wraps(function)
    def with_feeds(*args: Any, inputs: tuple[str, ...], feeds_file: Path | None, **rest: Any):
        given = {} if feeds_file is None else _read_feeds(feeds_file)
        return function(*args, feeds=given | dict(map(read_array, inputs)), **rest)

    return with_feeds


def make_feeds(exe: Executable, given: Mapping[str, np.ndarray], dim_values: Sequence[str]) -> dict[str, np.ndarray]:
    """Return inputs for a model: the given arrays, and random numbers (always the same) for the rest.

    dim_values: as of `--dim`. Raises: InputNameError; InputShapeError for sizes that no array can have.
    """
    import numpy as np

    for name in given:
        _check_name(name, [info.name for info in exe.inputs], "input")
    values = read_dims(dim_values)
    known = {symbol for info in exe.inputs for dim in info.shape for symbol in _symbols(dim)}
    for name in values:
        _check_name(name, sorted(known), "symbolic dimension")
    random = np.random.default_rng(0)
    return {
        info.name: given[info.name] if info.name in given else _random(random, info.shape, info.dtype, values)
        for info in exe.inputs
    }


def _check_name(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        raise InputNameError(
            f"no {what} is called {name!r}",
            expected=", ".join(known) or f"this model has no {what}",
            hint=did_you_mean(name, known),
        )


def read_dims(dim_values: Sequence[str]) -> dict[str, int]:
    """Parse values of `--dim`, such as `n=4`, into sizes by symbol.

    Raises: BadParameter (of click) for any other text.
    """
    values: dict[str, int] = {}
    for item in dim_values:
        name, equals, text = item.partition("=")
        if not (equals and name and text.isdecimal()):
            raise click.BadParameter(f"{item!r}; write NAME=N", param_hint="--dim")
        values[name] = int(text)
    return values


def _symbols(dim: int | str) -> frozenset[str]:
    from kernelyard import dims

    return frozenset(() if isinstance(dim, int) else dims.symbols_of(dims.parse(dim)))


def _read_feeds(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file. Raises: ExecutionError."""
    import numpy as np

    from kernelyard.runtime.array_files import read_array_file

    expected = "an .npz file with an array for each input"
    try:
        arrays = read_array_file(path)
    except (OSError, ValueError) as error:
        raise ExecutionError("the feeds cannot be read", where=str(path), found=error, expected=expected) from error
    if isinstance(arrays, np.ndarray):
        hint = f"--input NAME={path} gives it to one input"
        raise ExecutionError("the file holds one array without a name", where=str(path), expected=expected, hint=hint)
    return arrays


def read_array(item: str) -> tuple[str, np.ndarray]:
    """Return the name and the array of `NAME=FILE.npy`. Raises: BadParameter (of click); ExecutionError."""
    import numpy as np

    from kernelyard.runtime.array_files import read_array_file

    name, equals, path = item.rpartition("=")  # names may hold an equals sign, and then files may not
    if not equals:
        raise click.BadParameter(f"{item!r}; write NAME=FILE.npy", param_hint="--input")
    try:
        array = read_array_file(path)
    except (OSError, ValueError) as error:
        raise ExecutionError(
            f"the file for input {name!r} cannot be read", where=path, found=error, expected="a .npy file"
        ) from error
    if not isinstance(array, np.ndarray):
        hint = f"--feeds {path} gives an array to each input"
        problem = f"the file for input {name!r} holds several arrays"
        raise ExecutionError(problem, where=path, expected="a .npy file", hint=hint)
    return name, array


def _random(
    random: np.random.Generator, shape: Sequence[int | str], dtype: str, values: Mapping[str, int]
) -> np.ndarray:
    from kernelyard import dims
    from kernelyard.runtime.random_arrays import random_array

    sizes: list[int] = []
    for dim in shape:
        parsed = dim if isinstance(dim, int) else dims.parse(dim)
        sizes.append(dims.evaluate(parsed, {**dict.fromkeys(dims.symbols_of(parsed), 1), **values}))
    if any(size < 0 for size in sizes):
        raise InputShapeError("the given --dim values make a negative size", found=str(sizes))
    try:
        return random_array(random, sizes, dtype)
    except (MemoryError, OverflowError, ValueError) as error:
        raise InputShapeError("no array can have the sizes that --dim gives", found=str(sizes)) from error
