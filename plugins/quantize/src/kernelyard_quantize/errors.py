"""Errors of quantizing a model."""

from __future__ import annotations

from kernelyard.errors import KernelyardError


class QuantizationError(KernelyardError):
    """A model cannot be quantized as asked: an unknown scheme, or nothing to quantize."""

    code = "KY700"


class CalibrationError(QuantizationError):
    """Calibration data is missing, does not fit the model, or holds NaN or infinite numbers."""

    code = "KY701"
