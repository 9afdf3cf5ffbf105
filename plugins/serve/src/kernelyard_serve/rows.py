"""Which models can be batched: rows along a symbolic first axis that do not depend on one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import kernelyard as ky
from kernelyard import dims
from kernelyard.errors import KernelyardError
from kernelyard.runtime.random_arrays import random_array

TOLERANCE = 1e-2  # of the largest element: other kernels, and sums in another order, may run for other sizes
_ROWS = 3


def symbols(exe: ky.Executable) -> frozenset[str]:
    """Return the names of the symbolic sizes of the inputs."""
    return frozenset(name for info in exe.inputs for dim in info.shape for name in _symbols(dim))


def shapes(exe: ky.Executable, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs for sizes of all symbols. Raises: ShapeError."""
    return {info.name: tuple(_evaluate(dim, sizes) for dim in info.shape) for info in exe.inputs}


def warm_sizes(exe: ky.Executable, given: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Return the sets of sizes that are of use for a model: those that have all its symbols but that of its rows.

    A model that has no others needs none to be given.
    """
    needed = symbols(exe) - {batch_symbol(exe)}
    own = [{name: each[name] for name in each if name in symbols(exe)} for each in given]
    fitting = [each for each in own if needed <= each.keys()]
    return fitting or ([] if needed else [{}])


def batch_symbol(exe: ky.Executable) -> str | None:
    """Return the symbol that is the first axis of every input and output, and no part of another axis; else None."""
    tensors = (*exe.inputs, *exe.outputs)
    firsts = {info.shape[0] if info.shape else 0 for info in tensors}
    first = next(iter(firsts))
    if len(firsts) != 1 or isinstance(first, int) or dims.as_symbol(dims.parse(first)) is None:
        return None
    others = {name for info in tensors for dim in info.shape[1:] for name in _symbols(dim)}
    return None if first in others else first


def why_not_batched(exe: ky.Executable, sizes: Sequence[Mapping[str, int]]) -> str | None:
    """Return why requests of a model cannot be joined, None where they can.

    It is tried out on random rows, run together and alone, since the shapes do not tell what a model computes.
    sizes: what `warm_sizes` returns.
    """
    symbol = batch_symbol(exe)
    if symbol is None:
        return "its inputs and outputs have no symbolic first axis in common"
    if exe.vm_functions:
        return "it has branches or loops, which may look at all rows"
    if not sizes:
        return f"it cannot be tried out: sizes of {', '.join(sorted(symbols(exe) - {symbol}))} are not known (--warm)"
    random = np.random.default_rng(0)
    together = {
        info.name: random_array(random, shape, info.dtype)
        for info, shape in zip(exe.inputs, shapes(exe, {**sizes[0], symbol: _ROWS}).values(), strict=True)
    }
    try:
        results = exe.run(together)
        alone = [exe.run({name: array[row : row + 1] for name, array in together.items()}) for row in range(_ROWS)]
    except KernelyardError as error:
        return f"it could not be tried out: {error.message}"
    for name, result in results.items():
        joined = np.concatenate([each[name].numpy() for each in alone])
        if not _agree(joined, result.numpy()):
            return f"rows of {name!r} depend on one another"
    return None


def _agree(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    a, b = one.astype(np.float64), other.astype(np.float64)
    largest = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
    return bool(np.allclose(a, b, rtol=0.0, atol=TOLERANCE * largest, equal_nan=True))


def _symbols(dim: int | str) -> frozenset[str]:
    return frozenset() if isinstance(dim, int) else frozenset(dims.symbols_of(dims.parse(dim)))


def _evaluate(dim: int | str, values: Mapping[str, int]) -> int:
    return dim if isinstance(dim, int) else dims.evaluate(dims.parse(dim), values)
