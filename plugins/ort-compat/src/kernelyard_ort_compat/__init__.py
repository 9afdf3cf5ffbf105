"""Run programs written for onnxruntime, after `import kernelyard_ort_compat as onnxruntime`.

Programs that are not to be changed find it by `install()`, called before they import onnxruntime.

There is one provider, the processor; `KERNELYARD_ONNX_BACKENDS` chooses backends, as in `kernelyard_onnx.backend`.
Options that tune onnxruntime's own machinery are accepted and change nothing. Errors are Kernelyard's.
"""

from kernelyard_ort_compat import capi as capi
from kernelyard_ort_compat.environment import disable_telemetry_events as disable_telemetry_events
from kernelyard_ort_compat.environment import enable_telemetry_events as enable_telemetry_events
from kernelyard_ort_compat.environment import get_all_providers as get_all_providers
from kernelyard_ort_compat.environment import get_available_providers as get_available_providers
from kernelyard_ort_compat.environment import get_build_info as get_build_info
from kernelyard_ort_compat.environment import get_device as get_device
from kernelyard_ort_compat.environment import get_version_string as get_version_string
from kernelyard_ort_compat.environment import preload_dlls as preload_dlls
from kernelyard_ort_compat.environment import set_default_logger_severity as set_default_logger_severity
from kernelyard_ort_compat.environment import set_default_logger_verbosity as set_default_logger_verbosity
from kernelyard_ort_compat.environment import set_seed as set_seed
from kernelyard_ort_compat.install import install as install
from kernelyard_ort_compat.options import ExecutionMode as ExecutionMode
from kernelyard_ort_compat.options import ExecutionOrder as ExecutionOrder
from kernelyard_ort_compat.options import GraphOptimizationLevel as GraphOptimizationLevel
from kernelyard_ort_compat.options import RunOptions as RunOptions
from kernelyard_ort_compat.options import SessionOptions as SessionOptions
from kernelyard_ort_compat.session import InferenceSession as InferenceSession
from kernelyard_ort_compat.session import ModelMetadata as ModelMetadata
from kernelyard_ort_compat.session import NodeArg as NodeArg
from kernelyard_ort_compat.values import IOBinding as IOBinding
from kernelyard_ort_compat.values import OrtDevice as OrtDevice
from kernelyard_ort_compat.values import OrtValue as OrtValue

__version__ = get_version_string()  # programs ask for it
