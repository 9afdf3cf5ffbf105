"""Quantize models: `kernelyard.quantize`."""

from __future__ import annotations

from kernelyard_quantize.errors import CalibrationError as CalibrationError
from kernelyard_quantize.errors import QuantizationError as QuantizationError
from kernelyard_quantize.quantize_model import quantize as quantize
from kernelyard_quantize.result import QuantizationReport as QuantizationReport
from kernelyard_quantize.result import QuantizedModule as QuantizedModule
