"""Read a model and its feeds as a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kernelyard.ops  # noqa: F401  declares the operators
from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.driver.session.import_model import import_model
from kernelyard.driver.session.options import check_options
from kernelyard.errors import InputNameError
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.runtime.array_files import read_array_file
from kernelyard.runtime.random_arrays import random_array
from kernelyard.transform.pass_infra.pass_base import PassContext
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_debug.case import Case
from kernelyard_debug.errors import DebugError


@dataclass(frozen=True)
class Given:
    """Open what a user gave: a model, feeds (arrays by name, an .npz file, or None), and arguments of `compile`.

    sizes: of symbolic dims, for random feeds; others are 1.
    """

    model: object
    feeds: Mapping[str, np.ndarray] | str | Path | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


def open_case(given: Given) -> Case:
    """Return the model as the compiler imports it, with its feeds; a module's private functions are inlined.

    Raises: what reading the model raises, DebugError for a file that holds no feeds, InputNameError.
    """
    manager = get_manager()
    options = check_options(manager, given.arguments.get("options"))
    module = get_pipeline("import").run(import_model(manager, given.model, options), PassContext())
    case = Case(module, {})
    pairs = zip(case.input_names, case.function.params, strict=True)
    inputs = [(name, param.tensor_type.shape, param.tensor_type.dtype) for name, param in pairs]
    return Case(module, random_feeds(inputs, given.sizes, read_feeds(given.feeds)))


def read_feeds(feeds: Mapping[str, np.ndarray] | str | Path | None) -> dict[str, np.ndarray]:
    """Return feeds, from a file where a path is given. Raises: DebugError for a file that holds none."""
    if not isinstance(feeds, (str, Path)):
        return dict(feeds or {})
    try:
        loaded = read_array_file(feeds)
        if isinstance(loaded, np.ndarray):
            raise ValueError("it holds one array without a name")
        return loaded
    except (OSError, ValueError) as error:
        expected = "an .npz file with an array for each input"
        raise DebugError("the feeds cannot be read", where=str(feeds), found=error, expected=expected) from error


def random_feeds(
    inputs: Sequence[tuple[str, Sequence[Dim | str], str]], sizes: Mapping[str, int], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return given feeds, and random numbers (always the same) for the other inputs: (name, shape, dtype) each.

    Raises: InputNameError for a feed that is no input's.
    """
    unknown = sorted(set(given) - {name for name, _, _ in inputs})
    if unknown:
        expected = ", ".join(name for name, _, _ in inputs) or "this model has no input"
        raise InputNameError(f"no input is called {unknown[0]!r}", expected=expected)
    random = np.random.default_rng(0)
    return {
        n: np.asarray(given[n]) if n in given else random_array(random, _evaluate(s, sizes), d) for n, s, d in inputs
    }


def _evaluate(shape: Sequence[Dim | str], sizes: Mapping[str, int]) -> list[int]:
    parsed = [dims.parse(dim) if isinstance(dim, str) else dim for dim in shape]
    values = {**{symbol: 1 for dim in parsed for symbol in dims.symbols_of(dim)}, **sizes}
    return [dims.evaluate(dim, values) for dim in parsed]
