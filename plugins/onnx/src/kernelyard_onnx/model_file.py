"""Reading an ONNX file: from a path or bytes to a checked `ModelProto`."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from kernelyard.errors import ModelFormatError
from kernelyard_onnx.external_data import OwnFile, WeightFiles
from kernelyard_onnx.outline import MalformedError, outline_of
from kernelyard_onnx.text_check import check_texts

_HINT = "give the path of an .onnx file, its bytes, or an onnx.ModelProto"
_POINTER = b"version https://git-lfs"


def read_model(model: object) -> tuple[onnx.ModelProto, WeightFiles]:
    """Return the model, and where its weights lie: large ones stay in the file, of any size, until they are asked for.

    Raises: ModelFormatError.
    """
    if isinstance(model, onnx.ModelProto):
        _check(model, "the ModelProto")
        return model, WeightFiles()
    if isinstance(model, (bytes, bytearray, memoryview)):
        data = bytes(model)
        return _parse(data, len(data), "the given bytes"), WeightFiles(own=OwnFile(data))
    if not isinstance(model, (str, os.PathLike)):
        raise ModelFormatError("this is not an ONNX model", found=type(model).__name__, hint=_HINT)
    path = Path(os.fsdecode(model))
    try:
        own = OwnFile(path)
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise ModelFormatError(
            "the model file cannot be read", where=str(path), found=error.strerror or error, hint=_HINT
        ) from error
    try:
        store = path.resolve().parent if path.is_symlink() else None
        return _parse(data, size, str(path)), WeightFiles(path.parent, own, store)
    finally:
        if isinstance(data, mmap.mmap):
            data.close()


def _parse(data: Any, size: int, where: str) -> onnx.ModelProto:
    if not size:
        raise ModelFormatError("the file is empty", where=where, expected="an ONNX model")
    if data[: len(_POINTER)] == _POINTER:
        raise ModelFormatError("the file is a Git LFS pointer, not the model", where=where, hint="run `git lfs pull`")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(outline_of(data, size))
    except (DecodeError, MalformedError) as error:
        raise ModelFormatError(
            "the file is not an ONNX model, or it is truncated",
            where=where,
            found=f"{size} bytes that do not parse",
            hint=_HINT,
        ) from error
    _check(model, where)
    return model


def _check(model: onnx.ModelProto, where: str) -> None:
    """Protobuf reads many files that are something else: look for what every model has."""
    missing = [
        part
        for part, there in (
            ("a graph", model.HasField("graph")),
            ("an ir_version", model.ir_version > 0),
            ("an opset_import", len(model.opset_import) > 0),
            ("graph outputs", len(model.graph.output) > 0),
        )
        if not there
    ]
    if missing:
        raise ModelFormatError(
            "the file is not an ONNX model, or it is truncated",
            where=where,
            found=f"no {missing[0].split(' ', 1)[1]}",
            expected=", ".join(missing),
            hint=_HINT,
        )
    check_texts(model, where)
