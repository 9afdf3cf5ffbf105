"""Inputs to measure a model with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.driver.measured_placement import Tuning
from kernelyard.ir import IRModule
from kernelyard.ir.types import tensors_of
from kernelyard.runtime.execute.executable import Executable, TensorInfo
from kernelyard.runtime.placement_decision import sizes_text
from kernelyard.runtime.random_arrays import random_array
from kernelyard_tune.errors import TuneError

BATCH, OTHER = 1, 64  # sizes of symbols that nobody names: of a first dimension, and of others


def make_feeds(
    executable: Executable, given: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Return the feeds that are given, and random ones for the rest, the same in every process.

    sizes: of symbols, as `sizes_of` takes them.
    Raises: TuneError for a name that is none of the model's, or sizes that make a negative one.
    """
    random = np.random.default_rng(0)
    names = [info.name for info in executable.inputs]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise TuneError(f"no input is called {unknown[0]!r}", expected=", ".join(names) or "this model has no input")
    values = sizes_of([[_dim(dim) for dim in info.shape] for info in executable.inputs], sizes)
    return {
        info.name: np.asarray(given[info.name])
        if info.name in given
        else random_array(random, _shape(info, values), info.dtype)
        for info in executable.inputs
    }


def sizes_of(shapes: Iterable[Sequence[Dim]], given: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each symbol of the shapes of inputs: as given, else 1 for a batch and 64 for others.

    Raises: TuneError for a size that is no symbol of the model.

    Example:
        >>> n, h, w = map(dims.symbol, "nhw")
        >>> sizes_of([(n, 3, h, w)], {"h": 224})
        {'n': 1, 'h': 224, 'w': 64}
    """
    found: dict[str, int] = {}
    for shape in shapes:
        for axis, dim in enumerate(shape):
            for symbol in sorted(dims.symbols_of(dim)):
                found.setdefault(symbol, BATCH if axis == 0 else OTHER)
    unknown = [name for name in given if name not in found]
    if unknown:
        expected = ", ".join(found) or "this model has no symbolic dimension"
        raise TuneError(f"no symbolic dimension is called {unknown[0]!r}", expected=expected)
    return {**found, **given}


def list_measured_sizes(module: IRModule, tuning: Tuning) -> list[dict[str, int]]:
    """Return the sizes of all symbols of a model, once for each set that is measured. Raises: TuneError."""
    functions = module.public_functions().values()
    shapes = [each.shape for function in functions for param in function.params for each in tensors_of(param.type)]
    return [sizes_of(shapes, given) for given in tuning.sets_of_sizes]


def text_of_sizes(module: IRModule, tuning: Tuning) -> str:
    """Return what a model is measured with: sizes of its symbols, and shapes of feeds that are given."""
    texts = [*filter(None, map(sizes_text, list_measured_sizes(module, tuning)))]
    fed = ", ".join(f"{name} {np.shape(value)}" for name, value in tuning.feeds.items())
    return ", ".join(filter(None, ["; ".join(texts), fed]))


def _dim(dim: int | str) -> Dim:
    return dim if isinstance(dim, int) else dims.parse(dim)


def _shape(info: TensorInfo, values: Mapping[str, int]) -> tuple[int, ...]:
    shape = tuple(dims.evaluate(_dim(dim), dict(values)) for dim in info.shape)
    if any(size < 0 for size in shape):
        raise TuneError("the sizes make a negative one", where=f"input {info.name!r}", found=str(shape))
    return shape
