"""Errors, options and values under the names of onnxruntime's native module."""

from kernelyard_ort_compat.environment import get_all_providers as get_all_providers
from kernelyard_ort_compat.environment import get_available_providers as get_available_providers
from kernelyard_ort_compat.environment import get_build_info as get_build_info
from kernelyard_ort_compat.environment import get_device as get_device
from kernelyard_ort_compat.environment import get_version_string as get_version_string
from kernelyard_ort_compat.environment import set_default_logger_severity as set_default_logger_severity
from kernelyard_ort_compat.environment import set_default_logger_verbosity as set_default_logger_verbosity
from kernelyard_ort_compat.environment import set_seed as set_seed
from kernelyard_ort_compat.errors import ERRORS
from kernelyard_ort_compat.options import ExecutionMode as ExecutionMode
from kernelyard_ort_compat.options import ExecutionOrder as ExecutionOrder
from kernelyard_ort_compat.options import GraphOptimizationLevel as GraphOptimizationLevel
from kernelyard_ort_compat.options import RunOptions as RunOptions
from kernelyard_ort_compat.options import SessionOptions as SessionOptions
from kernelyard_ort_compat.session import ModelMetadata as ModelMetadata
from kernelyard_ort_compat.session import NodeArg as NodeArg
from kernelyard_ort_compat.values import OrtDevice as OrtDevice
from kernelyard_ort_compat.values import OrtValue as OrtValue

Fail = ERRORS["Fail"]
RuntimeException = ERRORS["RuntimeException"]
EngineError = ERRORS["EngineError"]
EPFail = ERRORS["EPFail"]
InvalidArgument = ERRORS["InvalidArgument"]
NotFound = ERRORS["NotFound"]
NoSuchFile = ERRORS["NoSuchFile"]
InvalidProtobuf = ERRORS["InvalidProtobuf"]
InvalidGraph = ERRORS["InvalidGraph"]
NoModel = ERRORS["NoModel"]
NotImplemented = ERRORS["NotImplemented"]  # noqa: A001  onnxruntime's name
