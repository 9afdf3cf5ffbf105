"""Reading an ONNX file: from a path or bytes to a checked `ModelProto`."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from kernelyard.errors import ModelFormatError
from kernelyard_onnx.text_check import check_texts

_HINT = "give the path of an .onnx file, its bytes, or an onnx.ModelProto"
_POINTER = b"version https://git-lfs"


def read_model(model: object) -> tuple[onnx.ModelProto, Path | None]:
    """The model and the folder that its external weights are relative to (None when it came from memory).

    Raises: ModelFormatError.
    """
    if isinstance(model, onnx.ModelProto):
        _check(model, "the ModelProto")
        return model, None
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _parse(bytes(model), "the given bytes"), None
    if not isinstance(model, (str, os.PathLike)):
        raise ModelFormatError("this is not an ONNX model", found=type(model).__name__, hint=_HINT)
    path = Path(os.fsdecode(model))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelFormatError(
            "the model file cannot be read", where=str(path), found=error.strerror or error, hint=_HINT
        ) from error
    return _parse(data, str(path)), path.parent


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    if not data:
        raise ModelFormatError("the file is empty", where=where, expected="an ONNX model")
    if data.startswith(_POINTER):
        raise ModelFormatError("the file is a Git LFS pointer, not the model", where=where, hint="run `git lfs pull`")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelFormatError(
            "the file is not an ONNX model, or it is truncated",
            where=where,
            found=f"{len(data)} bytes that do not parse",
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
