"""Errors of serving models, each with the status that a client gets over HTTP and over gRPC."""

from __future__ import annotations

import logging
from typing import NamedTuple

from kernelyard.errors import (
    CallCancelledError,
    CallTimeoutError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    KernelyardError,
    ShapeError,
    describe,
)


class ServeError(KernelyardError):
    """A server cannot start, or cannot answer a request."""

    code = "KY800"


class ServeSetupError(ServeError):
    """The command line names no models that can be served together, or something that is not installed."""

    code = "KY801"


class RequestFormatError(ServeError):
    """A request is not one of the protocol: no JSON, a wrong member, or other bytes than it says."""

    code = "KY802"


class RequestSizeError(ServeError):
    """The body of a request is larger than the server accepts."""

    code = "KY803"


class SlowRequestError(ServeError):
    """The body of a request did not arrive in time."""

    code = "KY804"


class UnknownServedModelError(ServeError):
    """No model or version of that name is served."""

    code = "KY805"


class ModelNotReadyError(ServeError):
    """The model is being loaded, was unloaded, or could not be loaded."""

    code = "KY806"


class QueueFullError(ServeError):
    """As many requests wait as may wait, or as can be answered in time; `retry_after` is in seconds."""

    code = "KY807"

    def __init__(self, message: str, *, retry_after: float, expected: str) -> None:
        super().__init__(message, expected=expected, hint=f"try again in {retry_after:.0f} s")
        self.retry_after = retry_after


class StoppingError(ServeError):
    """The server is stopping, and takes no more requests."""

    code = "KY808"


class ResultFormatError(ServeError):
    """A result cannot be written as JSON: it has infinite numbers or NaN."""

    code = "KY809"


class InternalServeError(ServeError):
    """A request failed for a reason that is no fault of its own."""

    code = "KY810"


class UnknownPathError(ServeError):
    """The protocol has no such path, or not with this method."""

    code = "KY811"


class Status(NamedTuple):
    """Map an error to what a client gets: the status of HTTP, and the name of that of gRPC."""

    http: int
    grpc: str


INTERNAL = Status(500, "INTERNAL")
_INVALID = Status(400, "INVALID_ARGUMENT")
_STATUS: dict[type[KernelyardError], Status] = {
    RequestFormatError: _INVALID,
    InputNameError: _INVALID,
    InputTypeError: _INVALID,
    InputShapeError: _INVALID,
    ShapeError: _INVALID,
    ResultFormatError: _INVALID,
    UnknownServedModelError: Status(404, "NOT_FOUND"),
    UnknownPathError: Status(404, "UNIMPLEMENTED"),
    SlowRequestError: Status(408, "DEADLINE_EXCEEDED"),
    RequestSizeError: Status(413, "RESOURCE_EXHAUSTED"),
    QueueFullError: Status(429, "RESOURCE_EXHAUSTED"),
    CallCancelledError: Status(499, "CANCELLED"),
    ModelNotReadyError: Status(503, "UNAVAILABLE"),
    StoppingError: Status(503, "UNAVAILABLE"),
    CallTimeoutError: Status(504, "DEADLINE_EXCEEDED"),
}
RETRY_SECONDS = 1.0  # where the time that it takes is not known


def status_of(error: KernelyardError) -> Status:
    """Return the status that stands for an error: that of the nearest of its classes in the table."""
    return next((_STATUS[each] for each in type(error).__mro__ if each in _STATUS), INTERNAL)


def retry_after(error: KernelyardError) -> float | None:
    """Return after how many seconds a request may succeed, None where trying again is of no use."""
    if isinstance(error, (ModelNotReadyError, StoppingError)):
        return RETRY_SECONDS
    return error.retry_after if isinstance(error, QueueFullError) else None


def as_ours(error: Exception) -> KernelyardError:
    """Return an error of the tree: the same, or one that says what other code raised, which is logged, too."""
    if isinstance(error, KernelyardError):
        return error
    logging.getLogger("kernelyard_serve").error("the server failed on a request", exc_info=error)
    return InternalServeError("the server failed on the request", found=describe(error))
