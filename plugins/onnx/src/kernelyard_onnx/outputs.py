"""ModelOutput: what an output of a model is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from kernelyard.errors import ModelFormatError
from kernelyard.plugins.api import Expr
from kernelyard_onnx.values import TensorSequence, Value, item_name


@dataclass(frozen=True)
class ModelOutput:
    """An output of a model. data_type: the element type of its tensors."""

    name: str
    value: Value
    data_type: int

    def tensors(self) -> dict[str, Expr]:
        """Return the results of the program that make it up, by name."""
        if isinstance(self.value, Expr):
            return {self.name: self.value}
        items = self.value.items if isinstance(self.value, TensorSequence) else ()
        return {item_name(self.name, index): item for index, item in enumerate(items)}


def model_output(declared: onnx.ValueInfoProto, value: Value | None, element_types: Mapping[Value, int]) -> ModelOutput:
    """Return an output of the graph.

    Raises: ModelFormatError when nothing produces it.
    """
    if value is None:
        raise ModelFormatError(f"no node produces the output {declared.name!r}", where="the graph's outputs")
    first = value.items[0] if isinstance(value, TensorSequence) and value.items else value
    return ModelOutput(declared.name, value, element_types.get(first, 0))
