"""Make feeds for a model: arrays from files, and random numbers for the other inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kernelyard.errors import ExecutionError, InputNameError, InputShapeError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from kernelyard.runtime.execute.executable import Executable


def make_feeds(exe: Executable, files: Sequence[str], dim_values: Sequence[str]) -> dict[str, np.ndarray]:
    """Return inputs for a model: the given NumPy files, and random numbers (always the same) for the rest."""
    import numpy as np

    given = dict(read_array(item) for item in files)
    for name in given:
        _check_name(name, [info.name for info in exe.inputs], "input")
    values = read_dims(dim_values)
    known = {symbol for info in exe.inputs for dim in info.shape for symbol in _symbols(dim)}
    for name in values:
        _check_name(name, sorted(known), "symbolic dimension")
    random = np.random.default_rng(0)
    return {info.name: given.get(info.name, _random(random, info.shape, info.dtype, values)) for info in exe.inputs}


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


def read_array(item: str) -> tuple[str, np.ndarray]:
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
        raise ExecutionError(f"the file for input {name!r} holds several arrays", where=path, expected="a .npy file")
    return name, array


def _random(
    random: np.random.Generator, shape: Sequence[int | str], dtype: str, values: Mapping[str, int]
) -> np.ndarray:
    from kernelyard import dims, dtypes

    sizes: list[int] = []
    for dim in shape:
        parsed = dim if isinstance(dim, int) else dims.parse(dim)
        sizes.append(dims.evaluate(parsed, {**dict.fromkeys(dims.symbols_of(parsed), 1), **values}))
    if any(size < 0 for size in sizes):
        raise InputShapeError("the given --dim values make a negative size", found=str(sizes))
    try:
        if dtypes.is_float(dtype):
            return random.standard_normal(sizes).astype(dtypes.to_numpy(dtype))
        return random.integers(0, 2, sizes).astype(dtypes.to_numpy(dtype))
    except (MemoryError, OverflowError, ValueError) as error:
        raise InputShapeError("no array can have the sizes that --dim gives", found=str(sizes)) from error
