"""Inference requests and answers as messages of gRPC: tensors as bytes, or as lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import InputNameError
from kernelyard.runtime.api import TensorInfo
from kernelyard_serve.batching import Arrays
from kernelyard_serve.datatypes import datatype_of
from kernelyard_serve.errors import RequestFormatError
from kernelyard_serve.grpc_messages import message
from kernelyard_serve.inference import (
    Deadline,
    InferenceRequest,
    check_outputs,
    check_tensor,
    from_bytes,
    order_feeds,
    timeout_of,
)

# The field of InferTensorContents that holds elements of a dtype; others are sent as bytes alone.
_CONTENTS = {
    "bool": "bool_contents",
    "int8": "int_contents",
    "int16": "int_contents",
    "int32": "int_contents",
    "int64": "int64_contents",
    "uint8": "uint_contents",
    "uint16": "uint_contents",
    "uint32": "uint_contents",
    "uint64": "uint64_contents",
    "float32": "fp32_contents",
    "float64": "fp64_contents",
}


def decode_request(
    asked: Any, inputs: Mapping[str, TensorInfo], outputs: Sequence[str], deadline: Deadline
) -> InferenceRequest:
    """Return the request that a message holds. deadline: of the client.

    Raises: RequestFormatError, InputNameError, InputTypeError, InputShapeError.
    """
    raw = asked.raw_input_contents
    if raw and len(raw) != len(asked.inputs):
        found, expected = f"{len(raw)} for {len(asked.inputs)} inputs", "one for each input, or none"
        raise RequestFormatError("raw_input_contents do not fit the inputs", found=found, expected=expected)
    feeds: Arrays = {}
    for index, tensor in enumerate(asked.inputs):
        info = inputs.get(tensor.name)
        if info is None or tensor.name in feeds:
            what = "the model has no such input" if info is None else "an input is given twice"
            raise InputNameError(what, found=repr(tensor.name), expected=", ".join(map(repr, inputs)))
        check_tensor(info, tensor.datatype, tensor.shape)
        given = from_bytes(info, tensor.shape, raw[index]) if raw else _from_contents(info, tensor)
        feeds[tensor.name] = given
    wanted = tuple(each.name for each in asked.outputs) or tuple(outputs)
    check_outputs(wanted, outputs)
    parameters = {"timeout": _integer(asked.parameters["timeout"])} if "timeout" in asked.parameters else {}
    limits = [each for each in (deadline.remaining, timeout_of(parameters)) if each is not None]
    limit = min(limits, default=None)
    return InferenceRequest(order_feeds(inputs, feeds), wanted, asked.id, limit, arrived=deadline.arrived)


def _integer(parameter: Any) -> int | None:
    return getattr(parameter, parameter.WhichOneof("parameter_choice") or "int64_param")


def _from_contents(info: TensorInfo, tensor: Any) -> np.ndarray:
    field = _CONTENTS.get(info.dtype)
    if field is None:
        where, expected = f"input {info.name!r}", "raw_input_contents"
        raise RequestFormatError("tensors of this datatype are sent as bytes", where=where, expected=expected)
    dtype = dtypes.to_numpy(info.dtype)
    elements = np.array(
        getattr(tensor.contents, field), np.int64 if dtype.itemsize < 4 and dtype.kind != "b" else dtype
    )
    if elements.dtype != dtype and elements.size:
        limits = np.iinfo(dtype)
        if elements.min() < limits.min or elements.max() > limits.max:
            where, expected = f"input {info.name!r}", f"{limits.min} to {limits.max}"
            raise RequestFormatError("an element is out of range", where=where, expected=expected)
    return from_bytes(info, tensor.shape, elements.astype(dtype, copy=False).tobytes())


def encode_answer(model: str, version: str, request: InferenceRequest, results: Mapping[str, np.ndarray]) -> Any:
    """Return the message with the results, as bytes."""
    answer = message("ModelInferResponse")(model_name=model, model_version=version, id=request.id)
    for name in request.outputs:
        array = results[name]
        answer.outputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        answer.raw_output_contents.append(array.tobytes())
    return answer
