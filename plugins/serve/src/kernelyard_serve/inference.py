"""Represent an inference request, however it was sent, and check its feeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelyard import dtypes
from kernelyard.errors import InputNameError, InputShapeError, InputTypeError
from kernelyard.runtime.api import TensorInfo
from kernelyard_serve.datatypes import DATATYPES
from kernelyard_serve.errors import RequestFormatError

MAX_RANK = 32


class InferenceRequest(NamedTuple):
    """Hold one request: feeds in the order of the model's inputs, the outputs that are wanted, and its id.

    timeout: seconds that the client waits, None for the server's own limit. binary: names of outputs that are sent as
    bytes. arrived: when it arrived at this machine, by the monotonic clock; None for now.
    """

    feeds: dict[str, np.ndarray]
    outputs: tuple[str, ...]
    id: str = ""
    timeout: float | None = None
    binary: frozenset[str] = frozenset()
    arrived: float | None = None


class Deadline(NamedTuple):
    """Hold how long a client of gRPC waits: the seconds that remain, None for no end.

    arrived: as that of InferenceRequest.
    """

    remaining: float | None = None
    arrived: float | None = None


def check_tensor(info: TensorInfo, datatype: str, shape: Sequence[int]) -> None:
    """Raise InputTypeError or InputShapeError where a tensor cannot be that input: datatype and rank."""
    if datatype != DATATYPES[info.dtype]:
        raise InputTypeError(
            "a tensor has the wrong datatype",
            where=f"input {info.name!r}",
            found=datatype,
            expected=DATATYPES[info.dtype],
        )
    if len(shape) != len(info.shape) or any(size < 0 for size in shape):
        raise InputShapeError(
            "a tensor has the wrong shape",
            where=f"input {info.name!r}",
            found=list(shape)[:MAX_RANK],
            expected=list(info.shape),
        )


def from_bytes(info: TensorInfo, shape: Sequence[int], data: memoryview | bytes) -> np.ndarray:
    """Return a tensor over the bytes of a request; they are copied only where they are not aligned.

    Raises: RequestFormatError for other bytes than the shape has.
    """
    dtype = dtypes.to_numpy(info.dtype)
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise RequestFormatError(
            "a tensor has not the bytes of its shape",
            where=f"input {info.name!r}",
            found=f"{len(data)} bytes",
            expected=f"{expected} bytes for {list(shape)} {info.dtype}",
        )
    array = np.frombuffer(data, dtype)
    if info.dtype == "bool" and array.size and (largest := int(array.view(np.uint8).max())) > 1:
        raise RequestFormatError("a byte of a BOOL is neither 0 nor 1", where=f"input {info.name!r}", found=largest)
    if not array.flags.aligned:
        array = array.copy()
    return array.reshape(tuple(shape))


def order_feeds(inputs: Mapping[str, TensorInfo], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the feeds in the order of the inputs. Raises: InputNameError for one too many or too few."""
    if len(given) == len(inputs) and all(name in given for name in inputs):
        return {name: given[name] for name in inputs}
    missing = [name for name in inputs if name not in given]
    unknown = [name for name in given if name not in inputs]
    raise InputNameError(
        "the tensors do not match the model's inputs",
        found="; ".join([f"no tensor {name!r}" for name in missing] + [f"{name!r} is no input" for name in unknown]),
        expected=", ".join(map(repr, inputs)),
    )


def check_rows(feeds: Mapping[str, np.ndarray]) -> None:
    """Raise InputShapeError where the inputs of a model that is batched differ in their rows."""
    rows = {name: array.shape[0] for name, array in feeds.items()}
    if len(set(rows.values())) > 1:
        raise InputShapeError("the first axes of the inputs differ", found=rows, expected="the same number of rows")


def check_outputs(wanted: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise InputNameError for an output that the model has not."""
    unknown = [name for name in wanted if name not in outputs]
    if unknown:
        raise InputNameError(
            "the model has no such output", found=repr(unknown[0]), expected=", ".join(map(repr, outputs))
        )


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """Return the parameter `timeout`, which is in microseconds, in seconds. Raises: RequestFormatError."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise RequestFormatError("the timeout is no number of microseconds", found=value, expected="1 and more")
    return value * 1e-6
