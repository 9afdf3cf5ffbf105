"""Weights that lie in files beside the model, and the rules that keep a model from reading anything else."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnx

from kernelyard.errors import ExternalDataError


def read_external(tensor: onnx.TensorProto, folder: Path | None, dtype: np.dtype, count: int) -> np.ndarray:
    """The flat array of a tensor whose data lies in another file.

    The file must be a regular file inside the model's folder, reached by no link, and hold the whole range.
    Raises: ExternalDataError.
    """
    where = f"weight {tensor.name!r}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if folder is None:
        raise ExternalDataError(
            "the model has external weights, but its folder is not known",
            where=where,
            hint="compile from the path of the .onnx file, or give the option folder",
        )
    path = resolve(entries.get("location", ""), folder, where)
    offset = _number(entries, "offset", 0, where)
    needed = dtype.itemsize * count
    length = _number(entries, "length", needed, where)
    if length != needed:
        raise ExternalDataError(
            "the size of an external weight does not fit its shape", where=where, found=length, expected=needed
        )
    size = path.stat().st_size
    if offset + length > size:
        raise ExternalDataError(
            "the file of external weights is too short",
            where=f"{where} in {path.name!r}",
            found=f"{size} bytes",
            expected=f"{offset + length}",
        )
    return np.fromfile(path, dtype=dtype, count=count, offset=offset)


def resolve(location: str, folder: Path, where: str) -> Path:
    """The file that `location` names inside `folder`.

    Raises: ExternalDataError for absolute paths, paths that leave the folder, links and what is no regular file.
    """

    def refuse(reason: str, hint: str | None = None) -> ExternalDataError:
        return ExternalDataError(
            f"the path of an external weight {reason}",
            where=where,
            found=repr(location),
            expected="a relative path of a regular file inside the model's folder",
            hint=hint,
        )

    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if not location or "\0" in location:
        raise refuse("is empty or has a null character")
    if posix.is_absolute() or windows.is_absolute() or windows.drive or windows.root:
        raise refuse("is absolute")
    if ".." in posix.parts or ".." in windows.parts:
        raise refuse("leaves the folder")
    path = folder
    for part in posix.parts:
        path = path / part
        if path.is_symlink():
            raise refuse("goes through a link", "copy the file to where the link is")
    if not path.exists():
        raise refuse("names a file that is not there", "keep the weights beside the .onnx file")
    if not path.is_file():
        raise refuse("names no regular file")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise refuse("leaves the folder")
    if os.stat(path).st_nlink > 1:
        raise refuse("names a file with several hard links", "copy the file")
    return path


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise ExternalDataError(
            f"the {key} of an external weight is no number", where=where, found=repr(text), expected="digits"
        )
    return int(text)
