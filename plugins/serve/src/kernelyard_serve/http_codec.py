"""Bodies of inference requests and answers over HTTP: JSON, and the extension for binary tensor data.

A request with tensors as bytes says in its header how long the JSON before them is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from kernelyard import dtypes
from kernelyard.errors import InputNameError
from kernelyard.runtime.api import TensorInfo
from kernelyard_serve.datatypes import datatype_of
from kernelyard_serve.errors import RequestFormatError, ResultFormatError
from kernelyard_serve.inference import (
    MAX_RANK,
    InferenceRequest,
    check_outputs,
    check_tensor,
    from_bytes,
    order_feeds,
    timeout_of,
)

HEADER_LENGTH = "inference-header-content-length"
_NO_DATA = msgspec.Raw()

Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
Parameters = dict[str, Any]


class InputTensor(msgspec.Struct):
    """Hold a tensor of a request; its data are JSON, or bytes after the JSON."""

    name: str
    datatype: str
    shape: Annotated[list[Size], msgspec.Meta(max_length=MAX_RANK)]
    parameters: Parameters = {}
    data: msgspec.Raw = _NO_DATA


class RequestedOutput(msgspec.Struct):
    """Name an output that a request asks for."""

    name: str
    parameters: Parameters = {}


class InferenceBody(msgspec.Struct):
    """Hold the JSON of an inference request."""

    inputs: list[InputTensor]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[RequestedOutput] | None = None


_BODY = msgspec.json.Decoder(InferenceBody)
_ANY = msgspec.json.Decoder()
_FLAT: dict[str, msgspec.json.Decoder[Any]] = {
    "b": msgspec.json.Decoder(list[bool]),
    "i": msgspec.json.Decoder(list[int]),
    "u": msgspec.json.Decoder(list[int]),
    "f": msgspec.json.Decoder(list[float]),
}
_ENCODER = msgspec.json.Encoder()


def to_json(value: object) -> bytes:
    """Return a value as JSON."""
    return _ENCODER.encode(value)


def read_json(body: bytes) -> Any:
    """Return the JSON of a body, {} for an empty one. Raises: RequestFormatError."""
    try:
        return _ANY.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestFormatError("the body is not JSON", found=str(error)) from None


# --- requests ---------------------------------------------------------------------------------------------------------
def decode_request(
    body: bytes, header_length: str | None, inputs: Mapping[str, TensorInfo], outputs: Sequence[str]
) -> InferenceRequest:
    """Return the request that a body holds. header_length: the value of that header.

    Raises: RequestFormatError, InputNameError, InputTypeError, InputShapeError.
    """
    length = len(body) if header_length is None else _header_length(header_length, len(body))
    try:
        asked = _BODY.decode(body if length == len(body) else memoryview(body)[:length])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestFormatError("the body is not an inference request", found=str(error)) from None
    feeds = _feeds(asked.inputs, inputs, memoryview(body)[length:])
    wanted = outputs if asked.outputs is None else [each.name for each in asked.outputs]
    check_outputs(wanted, outputs)
    binary = _binary_outputs(asked, wanted)
    return InferenceRequest(order_feeds(inputs, feeds), tuple(wanted), asked.id, timeout_of(asked.parameters), binary)


def _header_length(text: str, size: int) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > size:
        raise RequestFormatError(
            f"the header {HEADER_LENGTH} does not fit the body", found=text[:40], expected=f"0 to {size}"
        )
    return int(text)


def _feeds(tensors: Sequence[InputTensor], inputs: Mapping[str, TensorInfo], rest: memoryview) -> dict[str, np.ndarray]:
    feeds: dict[str, np.ndarray] = {}
    for tensor in tensors:
        info = inputs.get(tensor.name)
        if info is None or tensor.name in feeds:
            what = "the model has no such input" if info is None else "an input is given twice"
            raise InputNameError(what, found=repr(tensor.name), expected=", ".join(map(repr, inputs)))
        check_tensor(info, tensor.datatype, tensor.shape)
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            feeds[tensor.name] = _from_json(info, tensor)
            continue
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(rest):
            where, expected = f"input {tensor.name!r}", f"at most the {len(rest)} bytes that are left"
            raise RequestFormatError("binary_data_size does not fit", where=where, found=size, expected=expected)
        feeds[tensor.name] = from_bytes(info, tensor.shape, rest[:size])
        rest = rest[size:]
    if len(rest):
        raise RequestFormatError("bytes are left over after the last tensor", found=len(rest))
    return feeds


def _from_json(info: TensorInfo, tensor: InputTensor) -> np.ndarray:
    """Return the tensor whose elements are JSON: a flat list, or nested ones."""
    dtype, where = dtypes.to_numpy(info.dtype), f"input {info.name!r}"
    if not tensor.data:
        raise RequestFormatError("a tensor has no data", where=where, expected="data, or binary_data_size")
    try:
        flat = _parse_elements(tensor.data, info.dtype)
        if dtype.kind in "iu" and flat.size and flat.dtype != dtype:
            limits = np.iinfo(dtype)
            if flat.min() < limits.min or flat.max() > limits.max:
                raise OverflowError(f"{info.dtype} is from {limits.min} to {limits.max}")
        with np.errstate(over="ignore"):
            array = flat.astype(dtype, copy=False)
        if array.dtype != flat.dtype and not np.isfinite(array).all():  # JSON itself has finite numbers alone
            raise OverflowError(f"a number is beyond {info.dtype}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise RequestFormatError(
            "the data of a tensor cannot be read", where=where, found=str(error)[:200], expected=f"{info.dtype} numbers"
        ) from None
    if array.size != math.prod(tensor.shape):
        found, expected = f"{array.size} elements", f"{math.prod(tensor.shape)} for {tensor.shape}"
        raise RequestFormatError(
            "a tensor has not the elements of its shape", where=where, found=found, expected=expected
        )
    return array.reshape(tensor.shape)


def _parse_elements(data: msgspec.Raw, dtype: str) -> np.ndarray:
    """Return the elements in a dtype that holds them exactly. Raises: ValueError, DecodeError, ..."""
    kind = "f" if dtypes.is_float(dtype) else dtypes.to_numpy(dtype).kind
    exact = {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64}[kind]
    try:
        return np.array(_FLAT[kind].decode(data), exact)
    except msgspec.ValidationError:
        nested = _ANY.decode(data)
    found = np.array(nested)
    if found.size and found.dtype.kind not in {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[kind]:
        raise ValueError(f"elements are {found.dtype.name}")
    if kind == "u" and found.size and found.min() < 0:
        raise OverflowError(f"{dtype} is not negative")
    return found.astype(exact).ravel()


def _binary_outputs(asked: InferenceBody, wanted: Sequence[str]) -> frozenset[str]:
    every = asked.parameters.get("binary_data_output") is True
    if asked.outputs is None:
        return frozenset(wanted) if every else frozenset()
    return frozenset(each.name for each in asked.outputs if each.parameters.get("binary_data", every) is True)


# --- answers ----------------------------------------------------------------------------------------------------------
def encode_answer(
    model: str, version: str, request: InferenceRequest, results: Mapping[str, np.ndarray]
) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of the JSON in it where bytes follow, else None.

    Raises: ResultFormatError.
    """
    outputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name in request.outputs:
        array = results[name]
        head: dict[str, Any] = {"name": name, "datatype": datatype_of(array.dtype)}
        head["shape"] = array.shape
        if name in request.binary:
            parts.append(array.tobytes())
            head["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            head["data"] = _to_list(name, array)
        outputs.append(head)
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": outputs}
    if request.id:
        answer["id"] = request.id
    text = _ENCODER.encode(answer)
    return (b"".join([text, *parts]), len(text)) if parts else (text, None)


def _to_list(name: str, array: np.ndarray) -> list[Any]:
    if array.dtype.kind not in "biu":
        array = array if array.dtype.kind == "f" else array.astype(np.float32)  # bfloat16
        if not np.isfinite(array).all():
            raise ResultFormatError(
                "a result has infinite numbers or NaN, which JSON has not",
                where=f"output {name!r}",
                hint='ask for it as bytes: "parameters": {"binary_data": true}',
            )
    return array.ravel().tolist()
