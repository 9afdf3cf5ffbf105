"""The converters by operator: given the writer and the call, one adds nodes and returns the names of the results.

Definitions: https://onnx.ai/onnx/operators/, opset 20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from kernelyard.plugins.api import Call
from kernelyard_onnx_export.graph_writer import GraphWriter

Converter: TypeAlias = "Callable[[GraphWriter, Call], str | Sequence[str]]"

CONVERTERS: dict[str, Converter] = {}


def converter(*names: str) -> Callable[[Converter], Converter]:
    """Register the converter of operators."""

    def register(function: Converter) -> Converter:
        CONVERTERS.update(dict.fromkeys(names, function))
        return function

    return register


def inputs_of(writer: GraphWriter, call: Call) -> list[str]:
    """Return the names of the operands."""
    return [writer.name(arg) for arg in call.args]
