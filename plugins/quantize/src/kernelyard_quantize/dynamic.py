"""Dynamic quantization: integers whose scale each run computes, as ONNX's DynamicQuantizeLinear."""

from __future__ import annotations

import numpy as np

from kernelyard.ir import Var
from kernelyard_quantize.instrumented import Emitter
from kernelyard_quantize.quantizer import Quantizer

_STEPS = np.float32(255)  # of uint8


class DynamicQuantizer(Quantizer):
    """Rounds data to 256 steps of the range that it has in a run, which is made to contain 0."""

    def data(self, emit: Emitter, x: Var) -> Var:
        """Return a value stored as uint8 and restored."""
        nothing = np.float32(0)
        low = emit("minimum", emit.reduce("min", x), nothing)
        high = emit("maximum", emit.reduce("max", x), nothing)
        scale = emit("divide", emit("subtract", high, low), _STEPS)
        # All zeros: any scale will do, but not 0.
        safe = emit("where", emit("equal", scale, nothing), np.float32(1), scale)
        zero = emit("quantize", emit("negative", low), safe, np.uint8(0), dtype="uint8")
        return emit("dequantize", emit("quantize", x, safe, zero, dtype="uint8"), scale, zero)
