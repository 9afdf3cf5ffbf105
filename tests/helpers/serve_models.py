"""Models of rows, as artifacts to serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import kernelyard as ky
import kernelyard.ops  # their vocabulary
from kernelyard import dims
from kernelyard.ir import FunctionBuilder, IRModule

WIDTH = 8


def scale(factor: float, op: str = "nn.relu", **attributes: Any) -> IRModule:
    """A model of rows: op(x * factor)."""
    b = FunctionBuilder()
    x = b.input("x", (dims.symbol("n"), WIDTH))
    return IRModule({"main": b.function(b.op(op, b.op("multiply", x, np.float32(factor)), **attributes))})


def save(module: IRModule, path: Path) -> Path:
    """Compile a model to an artifact; one that is there is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ky.compile(module).save(path)
    return path
