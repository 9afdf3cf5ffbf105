"""ModelOutput: what an output of a model is made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from kernelyard.errors import ModelFormatError, UnsupportedOperatorError
from kernelyard.plugins.api import Expr
from kernelyard_onnx.element_types import NARROW, restore
from kernelyard_onnx.problems import SESSION_HINT
from kernelyard_onnx.values import LookedUpText, Maps, Nothing, StringTensor, TensorSequence, Value, item_name


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
        if isinstance(self.value, LookedUpText):
            return {self.name: self.value.indices}
        if isinstance(self.value, Maps):
            return {self.name: self.value.tensor}
        items = self.value.items if isinstance(self.value, TensorSequence) else ()
        return {item_name(self.name, index): item for index, item in enumerate(items)}

    def legend(self) -> dict[str, str]:
        """Return what a program's own results do not say, as metadata in JSON: the texts that its numbers are indices
        of ("NAME.texts"), or the keys of the maps whose values its columns are ("NAME.keys").

        Raises: UnsupportedOperatorError where a program has no result for it.
        """
        if isinstance(self.value, LookedUpText):
            return {f"{self.name}.texts": json.dumps(self.value.table.tolist())}
        if isinstance(self.value, Maps):
            return {f"{self.name}.keys": json.dumps(self.value.keys)}
        if isinstance(self.value, (StringTensor, Nothing)):
            raise UnsupportedOperatorError(
                f"the output {self.name!r} is not computed by a program: it is the same for all inputs",
                where=f"output {self.name!r}",
                found="text" if isinstance(self.value, StringTensor) else "an optional that holds nothing",
                expected="numbers, text of a table, maps or a sequence",
                hint=SESSION_HINT,
            )
        return {}

    def finish(self, array: np.ndarray) -> Any:
        """Return the output of the one result of the program that makes it up."""
        return self.finisher(array)

    @property
    def finisher(self) -> Callable[[np.ndarray], Any]:
        """Do what `finish` does, chosen once: a call of a small model takes some microseconds in all."""
        if isinstance(self.value, LookedUpText):
            return self.value.table.__getitem__
        if isinstance(self.value, Maps):
            return partial(rows_as_maps, self.value.keys)
        return partial(restore, data_type=self.data_type) if self.data_type in NARROW else _same


def _same(array: np.ndarray) -> np.ndarray:
    return array


def rows_as_maps(keys: Sequence[int | str], array: np.ndarray) -> list[dict[int | str, float]]:
    """Return a map for each row. Those of two and three keys, which most classifiers have, are written out: that takes
    a fraction of the time. So does reading columns, for each row of which no list is made."""
    if len(array) == 1:
        return [dict(zip(keys, array[0].tolist(), strict=True))]
    columns = array.T.tolist()
    if len(keys) == 2:
        first, second = keys
        return [{first: a, second: b} for a, b in zip(*columns, strict=True)]
    if len(keys) == 3:
        first, second, third = keys
        return [{first: a, second: b, third: c} for a, b, c in zip(*columns, strict=True)]
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]


def model_output(declared: onnx.ValueInfoProto, value: Value | None, element_types: Mapping[Value, int]) -> ModelOutput:
    """Return an output of the graph.

    Raises: ModelFormatError when nothing produces it.
    """
    if value is None:
        raise ModelFormatError(f"no node produces the output {declared.name!r}", where="the graph's outputs")
    first = value.items[0] if isinstance(value, TensorSequence) and value.items else value
    return ModelOutput(declared.name, value, element_types.get(first, 0))
