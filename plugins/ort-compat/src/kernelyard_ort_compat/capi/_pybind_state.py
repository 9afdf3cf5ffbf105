"""Name what onnxruntime's package takes from its native module; some programs import it from here."""

from kernelyard_ort_compat.capi.onnxruntime_pybind11_state import *  # noqa: F403
