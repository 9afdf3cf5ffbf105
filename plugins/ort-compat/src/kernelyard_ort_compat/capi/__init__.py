"""Modules that programs written for onnxruntime import beside the package itself."""

from kernelyard_ort_compat.capi import _pybind_state as _pybind_state
from kernelyard_ort_compat.capi import onnxruntime_inference_collection as onnxruntime_inference_collection
from kernelyard_ort_compat.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state
