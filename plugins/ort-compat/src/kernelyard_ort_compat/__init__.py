"""Run programs written for onnxruntime, after `import kernelyard_ort_compat as onnxruntime`.

There is one provider, the processor; `KERNELYARD_ONNX_BACKENDS` chooses backends, as in `kernelyard_onnx.backend`.
Options that tune onnxruntime's own machinery are accepted and change nothing. Errors are Kernelyard's.
"""

from typing import Any

from kernelyard_ort_compat.errors import capi as capi
from kernelyard_ort_compat.options import ExecutionMode as ExecutionMode
from kernelyard_ort_compat.options import ExecutionOrder as ExecutionOrder
from kernelyard_ort_compat.options import GraphOptimizationLevel as GraphOptimizationLevel
from kernelyard_ort_compat.options import RunOptions as RunOptions
from kernelyard_ort_compat.options import SessionOptions as SessionOptions
from kernelyard_ort_compat.session import PROVIDER
from kernelyard_ort_compat.session import InferenceSession as InferenceSession
from kernelyard_ort_compat.session import ModelMetadata as ModelMetadata
from kernelyard_ort_compat.session import NodeArg as NodeArg
from kernelyard_ort_compat.values import IOBinding as IOBinding
from kernelyard_ort_compat.values import OrtDevice as OrtDevice
from kernelyard_ort_compat.values import OrtValue as OrtValue

__version__ = "1.20.0"  # of the onnxruntime whose names these are, for programs that ask for it


def get_available_providers() -> list[str]:
    """Return the one provider."""
    return [PROVIDER]


get_all_providers = get_available_providers


def get_device() -> str:
    """Return the device that sessions run on."""
    return "CPU"


def get_version_string() -> str:
    """Return the version of onnxruntime whose names these are."""
    return __version__


def get_build_info() -> str:
    """Return the name of the engine behind the names."""
    return "Kernelyard"


def ignore_setting(*arguments: Any, **options: Any) -> None:
    """Accept a setting of random numbers, libraries, telemetry or the logger, and change nothing."""


set_seed = preload_dlls = ignore_setting
enable_telemetry_events = disable_telemetry_events = ignore_setting
set_default_logger_severity = set_default_logger_verbosity = ignore_setting
