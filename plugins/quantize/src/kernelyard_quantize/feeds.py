"""Calibration data: feeds of a model, from arrays or from files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np

from kernelyard.runtime.array_files import read_array_file
from kernelyard_quantize.errors import CalibrationError

PICTURES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))
Feed: TypeAlias = "Mapping[str, np.ndarray]"


class Feeds:
    """Calibration data that can be gone through several times, checked as it is read.

    source: feeds (name -> array), or single arrays for a model of one input; a list, or a function that returns an
    iterator, so that data needs not fit in memory. names: the model's inputs.
    Raises: CalibrationError when it holds nothing, and while it is read for a feed with wrong names, with NaN or
    infinite numbers.
    """

    def __init__(self, source: object, names: Sequence[str]) -> None:
        if isinstance(source, Iterator):
            raise CalibrationError(
                "calibration data is read several times, which an iterator does not allow",
                found=type(source).__name__,
                expected="a list of feeds, or a function that returns an iterator over them",
            )
        self._source, self._names = source, tuple(names)

    def __iter__(self) -> Iterator[Feed]:
        count = 0
        for count, given in enumerate(self._open(), 1):
            yield self._check(given, count - 1)
        if not count:
            raise CalibrationError(
                "there is no calibration data",
                expected="one feed or more, as the model will see them",
                hint="a few dozen samples are enough; schemes of kind 'dynamic' and 'weights' need none",
            )

    def first(self, count: int) -> Feeds:
        """Return the first feeds alone."""
        return Feeds(lambda: islice(self, count), self._names)

    def _open(self) -> Iterable[object]:
        source = self._source() if callable(self._source) else self._source
        if isinstance(source, (Mapping, np.ndarray)):
            return [source]
        if isinstance(source, Iterable):
            return source
        raise CalibrationError("this is no calibration data", found=repr(source)[:80], expected="a list of feeds")

    def _check(self, given: object, number: int) -> Feed:
        where = f"feed {number}"
        if not isinstance(given, Mapping):
            if len(self._names) != 1:
                expected = f"a mapping with {', '.join(self._names)}"
                raise CalibrationError("a feed needs names", where=where, found=type(given).__name__, expected=expected)
            given = {self._names[0]: given}
        if set(given) != set(self._names):
            found, expected = ", ".join(map(str, given)) or "nothing", ", ".join(self._names)
            raise CalibrationError("a feed has other names than the model", where=where, found=found, expected=expected)
        feed = {name: np.asarray(given[name]) for name in self._names}
        for name, array in feed.items():
            if array.dtype.kind == "f" and not bool(np.isfinite(array).all()):
                problem = "NaN" if bool(np.isnan(array).any()) else "infinite numbers"
                raise CalibrationError(f"calibration data holds {problem}", where=f"{where}, input {name!r}")
        return feed


def read_folder(folder: Path) -> Sequence[Path]:
    """Return the files of a folder that hold feeds, in the order of their names: .npz, and .npy for one input.

    Raises: CalibrationError when there is none, which says what to make of pictures.
    """
    there = sorted(folder.glob("*")) if folder.is_dir() else []
    files = [path for path in there if path.suffix in (".npz", ".npy")]
    pictures = [path for path in there if path.suffix.lower() in PICTURES]
    if pictures and not files:
        raise CalibrationError(
            "the folder has pictures, and how the model wants its numbers is not known",
            where=str(folder),
            found=f"{pictures[0].name} and {len(pictures) - 1} more" if pictures[1:] else pictures[0].name,
            expected="files .npz with an array for each input, or .npy for a model of one input",
            hint="resize, scale and transpose each as for the model itself, and write it with numpy.save(path, array)",
        )
    if not files:
        raise CalibrationError(
            "the folder has no calibration data",
            where=str(folder),
            expected="files .npz with an array for each input, or .npy for a model of one input",
            hint="write one with numpy.savez(path, **feed)",
        )
    return files


def read_files(files: Sequence[Path]) -> Iterator[Feed | np.ndarray]:
    """Yield a feed for each file, one in memory at a time. Raises: CalibrationError for what NumPy cannot read."""
    for path in files:
        try:
            loaded = read_array_file(path)
        except (OSError, ValueError) as error:
            raise CalibrationError("a file of calibration data cannot be read", where=str(path), found=error) from error
        yield loaded
