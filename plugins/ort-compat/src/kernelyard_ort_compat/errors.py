"""Name Kernelyard's errors as a program written for onnxruntime catches them.

try:
    session.run(None, feeds)
except ort.capi.onnxruntime_pybind11_state.InvalidArgument as error: ...
"""

from __future__ import annotations

from kernelyard.errors import (
    ExecutionError,
    InputNameError,
    KernelyardError,
    ModelFormatError,
    UnsupportedOperatorError,
)

ERRORS = {
    "Fail": KernelyardError,
    "RuntimeException": KernelyardError,
    "EPFail": KernelyardError,
    "InvalidArgument": ExecutionError,
    "EngineError": KernelyardError,
    "NotFound": KernelyardError,
    "NoSuchFile": ModelFormatError,
    "InvalidProtobuf": ModelFormatError,
    "InvalidGraph": ModelFormatError,
    "NoModel": ModelFormatError,
    "NotImplemented": UnsupportedOperatorError,
}


class MissingInputError(InputNameError, ValueError):
    """An input of a session is missing; a ValueError too, as onnxruntime's is."""

    code = "KY504"
