"""Weights that lie outside of the model's messages: in its own file, stepped over when that was read, and in files
beside it, under the rules that keep a model from reading anything else."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

import numpy as np
import onnx

from kernelyard.errors import ExternalDataError
from kernelyard.runtime.api import ALIGNMENT, address_of, aligned_bytes
from kernelyard_onnx.outline import INSIDE


class OwnFile:
    """The file, or the bytes, that a model was read from.

    Raises: OSError when there is no such file.
    """

    def __init__(self, content: Path | bytes) -> None:
        self._content = content
        self._state = _state_of(content) if isinstance(content, Path) else None
        self._file: BinaryIO | None = None

    def read(self, offset: int, length: int, where: str) -> np.ndarray:
        """Return a copy of so many bytes from `offset` on; the file stays open until `close`.

        Raises: ExternalDataError when there are not so many, or the file is not what it was.
        """
        content = self._content
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        if offset + length > size or (isinstance(content, Path) and _state_of(content) != self._state):
            raise ExternalDataError(
                "the model file has changed since it was read, or it names bytes that it does not have",
                where=where if isinstance(content, bytes) else f"{where} in {content}",
                found=f"{size} bytes",
                expected=f"{offset + length}",
            )
        array = aligned_bytes(length)
        if isinstance(content, bytes):
            array[:] = np.frombuffer(content, np.uint8, length, offset)
        else:
            self._file = self._file or content.open("rb")
            _fill(array, self._file, offset)
        return array

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


class WeightFiles:
    """The files of a model's weights: its own file if it came from one, and those of its folder if that is known.

    Those of its own file are read into memory of their own. Files beside it are mapped: their pages are shared with
    all who read them, and must stay as they are while the weights are in use.

    store: where the model's file really lies, if it was reached by a link; links of weights may lead there too. So
    caches of models are laid out: a folder of links to files in one store.
    """

    def __init__(self, folder: Path | None = None, own: OwnFile | None = None, store: Path | None = None) -> None:
        self.folder = folder
        self._own = own
        self._store = store
        self._mapped: dict[str, tuple[Path, np.ndarray]] = {}  # by location

    def in_folder(self, folder: Path | None) -> WeightFiles:
        """Return the same with another folder, where one is given."""
        return self if folder is None else WeightFiles(folder, self._own, self._store)

    def close(self) -> None:
        """Close what is open; arrays that were read stay valid."""
        self._mapped.clear()
        if self._own is not None:
            self._own.close()

    def read(self, tensor: onnx.TensorProto, dtype: np.dtype, count: int) -> np.ndarray:
        """Return the flat array, read-only, of a tensor whose data lies outside of its message.

        Raises: ExternalDataError.
        """
        where = f"weight {tensor.name!r}"
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        offset = _read_number(entries, "offset", 0, where)
        needed = dtype.itemsize * count
        length = _read_number(entries, "length", needed, where)
        if length != needed:
            raise ExternalDataError(
                "the size of a weight does not fit its shape",
                where=f"{where} of shape {tuple(tensor.dims)}",
                found=f"{length} bytes",
                expected=f"{needed} bytes",
            )
        if location == INSIDE and self._own is not None:
            array = self._own.read(offset, length, where)
        else:
            array = self._beside(location, offset, length, where)
        found = (
            array.view(dtype) if sys.byteorder == "little" else array.view(dtype).byteswap()
        )  # files are little-endian
        found.flags.writeable = False
        return found

    def _beside(self, location: str, offset: int, length: int, where: str) -> np.ndarray:
        if self.folder is None:
            raise ExternalDataError(
                "the model has external weights, but its folder is not known",
                where=where,
                hint="compile from the path of the .onnx file, or give the option folder",
            )
        if location not in self._mapped:
            path = resolve(location, self.folder, where, self._store)
            self._mapped[location] = path, _map(path)
        path, whole = self._mapped[location]
        if offset + length > whole.nbytes:
            raise ExternalDataError(
                "the file of external weights is truncated",
                where=f"{where} in {path.name!r}",
                found=f"{whole.nbytes} bytes",
                expected=f"{offset + length}",
            )
        part = whole[offset : offset + length]
        if address_of(part) % ALIGNMENT:  # a program would have to copy it, and then both would be in memory
            part = aligned_bytes(length)
            with path.open("rb") as file:
                _fill(part, file, offset)
        return part


def _fill(array: np.ndarray, file: BinaryIO, offset: int) -> None:
    file.seek(offset)
    file.readinto(array.data)  # pyright: ignore[reportAttributeAccessIssue]  # whatever `open` gives has it


def _map(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:  # what is empty cannot be mapped
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _state_of(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def resolve(location: str, folder: Path, where: str, store: Path | None = None) -> Path:
    """Return the file that `location` names inside `folder`.

    Raises: ExternalDataError for absolute paths, paths that leave the folder, what is no regular file, and links, but
      for those of files right in `store`.
    """

    def refuse(reason: str, hint: str | None = None) -> ExternalDataError:
        return ExternalDataError(
            f"the path of an external weight {reason}",
            where=where,
            found=repr(location),
            expected="a relative path of a regular file inside the model's folder",
            hint=hint,
        )

    if not location or "\0" in location:
        raise refuse("is empty or has a null character")
    if PurePosixPath(location).anchor or PureWindowsPath(location).anchor:
        raise refuse("is absolute")
    if ".." in (*PurePosixPath(location).parts, *PureWindowsPath(location).parts):
        raise refuse("leaves the folder")
    path = folder
    for part in PurePosixPath(location).parts:
        path = path / part
        if path.is_symlink() and (store is None or path.resolve().parent != store):
            raise refuse("contains a symbolic link", "replace the link by a copy of the file")
    if not path.exists():
        raise refuse("names a file that does not exist", "keep the weights beside the .onnx file")
    if not path.is_file():
        raise refuse("does not name a regular file")
    real = path.resolve()
    if not real.is_relative_to(folder.resolve()) and real.parent != store:
        raise refuse("leaves the folder")
    if os.stat(path).st_nlink > 1:
        raise refuse("names a file with several hard links", "copy the file")
    return path


def _read_number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise ExternalDataError(
            f"the {key} of an external weight is not a number", where=where, found=repr(text), expected="digits"
        )
    return int(text)
