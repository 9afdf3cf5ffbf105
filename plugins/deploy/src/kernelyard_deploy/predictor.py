"""Predictor: an artifact by its path, loaded once per process, called with arrays by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

import kernelyard as ky
from kernelyard import dims, dtypes
from kernelyard.errors import InputShapeError, KernelyardError
from kernelyard.runtime.api import Executable, renewed_in_children
from kernelyard_deploy.facts import Facts

Feed = Mapping[str, Any]
Result = dict[str, np.ndarray]


class _Loaded(NamedTuple):
    executable: Executable
    facts: Facts


# Of this process; a file that was replaced is another one.
_loaded: dict[tuple[str, int | None, int, int, int], _Loaded] = {}
_lock = renewed_in_children(Lock())


class Predictor:
    """Run an artifact on named arrays, in any process that has its path.

    It is pickled as its path: an engine's workers each load the artifact once, at their first call, however many
    predictors of it they are sent. Calls are safe from many threads.

    Example:
        predictor = Predictor("model.kyar")
        predictor({"x": rows})["output_0"]
    """

    def __init__(self, path: str | os.PathLike[str], threads: int | None = None) -> None:
        self.path = os.path.abspath(path)
        self.threads = threads

    def __reduce__(self) -> tuple[Callable[..., Predictor], tuple[str, int | None]]:
        return Predictor, (self.path, self.threads)

    def __repr__(self) -> str:
        return f"Predictor({self.path!r})"

    @property
    def executable(self) -> Executable:
        """Return the loaded artifact. Raises: as `kernelyard.load`."""
        return self._find().executable

    @property
    def facts(self) -> Facts:
        """Return the facts of the artifact's publisher. Raises: as `kernelyard.load`; ExportError."""
        return self._find().facts

    def _find(self) -> _Loaded:
        try:
            status = os.stat(self.path)
            key = (self.path, self.threads, status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            key = (self.path, self.threads, 0, 0, 0)  # never there: `load` says what is wrong
        with _lock:
            if key not in _loaded:
                executable = ky.load(self.path, threads=self.threads)
                for old in [each for each in _loaded if each[:2] == key[:2]]:
                    del _loaded[old]
                _loaded[key] = _Loaded(executable, Facts.from_metadata(executable.metadata))
            return _loaded[key]

    def warm(self) -> None:
        """Prepare the sizes that the artifact names for it; where it names none, those of a model of known sizes."""
        executable, facts = self._find()
        symbolic = any(isinstance(dim, str) for info in executable.inputs for dim in info.shape)
        sets = [_shapes(executable, values) for values in facts.warm_up] or ([] if symbolic else [{}])
        executable.max_plans = max(executable.max_plans, len(sets))
        if sets:
            executable.warm(*sets)

    def __call__(self, feed: Feed) -> Result:
        """Run the main function: arrays by name in, NumPy arrays by name out; feeds of other names are left out.

        Numbers are cast as NumPy's "same_kind" allows: float64 or int64 to float32, but no floats to integers.
        Raises: as `Executable.run`; InputShapeError for sizes out of the artifact's bounds.
        """
        executable, facts = self._find()
        arrays = {info.name: _as_array(feed[info.name], info.dtype) for info in executable.inputs if info.name in feed}
        if facts.sizes:
            _check_bounds(executable, facts, arrays)
        return {name: tensor.numpy() for name, tensor in executable.run(arrays).items()}

    def run_together(self, feeds: Sequence[Feed]) -> list[Result | KernelyardError]:
        """Run several requests, in one call where the artifact says that their rows are independent (`batch`).

        A request that fails has its error in its place, and no other one is harmed.
        """
        merged = self._merge(feeds) if len(feeds) > 1 and self.facts.batch else None
        if merged is not None:
            rows, feed = merged
            try:
                result = self(feed)
            except KernelyardError:
                pass  # each alone, below: one of them is at fault, or all together are too many
            else:
                if all(len(array) == sum(rows) for array in result.values()):
                    return _split(result, rows)
        return [self._attempt(feed) for feed in feeds]

    def _attempt(self, feed: Feed) -> Result | KernelyardError:
        try:
            return self(feed)
        except KernelyardError as error:
            return error

    def _merge(self, feeds: Sequence[Feed]) -> tuple[list[int], Result] | None:
        """Return the rows of each request, and one feed with all; None where they cannot be one."""
        infos, batch = self.executable.inputs, self.facts.batch
        if any(not info.shape or info.shape[0] != batch for info in infos):
            return None
        rows: list[int] = []
        for feed in feeds:
            sizes = {np.shape(feed[info.name])[:1] for info in infos if info.name in feed}
            if len(sizes) != 1 or () in sizes or any(info.name not in feed for info in infos):
                return None
            rows.append(sizes.pop()[0])
        try:
            return rows, {info.name: np.concatenate([feed[info.name] for feed in feeds]) for info in infos}
        except ValueError:  # the other sizes differ
            return None


def _split(result: Result, rows: Sequence[int]) -> list[Result | KernelyardError]:
    bounds = zip(rows, np.cumsum(rows), strict=True)
    return [{name: array[end - count : end] for name, array in result.items()} for count, end in bounds]


def _shapes(executable: Executable, values: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    def evaluate(dim: int | str) -> int:
        return dim if isinstance(dim, int) else dims.evaluate(dims.parse(dim), values)

    return {info.name: tuple(map(evaluate, info.shape)) for info in executable.inputs}


def _as_array(value: Any, dtype: str) -> Any:
    """Return a NumPy array of the input's dtype where the given one is of the same kind; what else it is `run` says.

    Rows that are arrays or lists themselves, as columns of lists come out of Parquet and pandas, become one array.
    """
    array = np.asarray(value) if isinstance(value, (list, tuple, int, float, bool)) else value
    if not isinstance(array, np.ndarray):
        return array
    if array.dtype == object and array.size and array.ndim == 1:
        with suppress(ValueError):  # rows of several lengths
            array = np.stack([np.asarray(row) for row in array])
    wanted = dtypes.to_numpy(dtype)
    if array.dtype != wanted and array.dtype.kind in "biuf" and np.can_cast(array.dtype, wanted, "same_kind"):
        return array.astype(wanted)
    return array


def _check_bounds(executable: Executable, facts: Facts, arrays: Mapping[str, Any]) -> None:
    for info in executable.inputs:
        for axis, (dim, size) in enumerate(zip(info.shape, np.shape(arrays.get(info.name, ())), strict=False)):
            least, most = facts.sizes.get(str(dim), (size, size))
            if not least <= size <= most:
                raise InputShapeError(
                    "a size is out of the bounds that the artifact was published with",
                    where=f"{info.name}, axis {axis} ({dim})",
                    found=size,
                    expected=f"{least} to {most}",
                )
