"""Session: a model that is compiled as far as it is decided, and for what its inputs decide when these are there.

Most models are compiled once. Where an input has no declared rank, is a sequence, an optional or text, where its value
decides what the program is, or where it is empty, the model is compiled for what is given, and kept for the next call
with the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import kernelyard as ky
from kernelyard.errors import InputNameError, InputTypeError
from kernelyard.runtime.api import Executable
from kernelyard_onnx.element_types import carried, given_back
from kernelyard_onnx.external_data import WeightFiles
from kernelyard_onnx.importer import ImportedModel, import_structured
from kernelyard_onnx.outputs import ModelOutput
from kernelyard_onnx.undecided import UndecidedInputsError
from kernelyard_onnx.values import Nothing, StringTensor, TensorSequence, item_name

MAX_KEPT = 16


@dataclass(frozen=True)
class Compiled:
    """A model compiled for some inputs: the executable is None where nothing is left to compute."""

    imported: ImportedModel
    executable: Executable | None

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of the model, in order."""
        arrays: dict[str, np.ndarray] = {}
        if self.executable is not None:
            flat = flattened(feeds)
            results = self.executable.run({name: flat[name] for name in self.imported.input_names})
            arrays = {name: tensor.numpy() for name, tensor in results.items()}
        return [self._output(output, arrays) for output in self.imported.outputs]

    def _output(self, output: ModelOutput, arrays: Mapping[str, np.ndarray]) -> Any:
        if isinstance(output.value, Nothing):
            return None
        if isinstance(output.value, StringTensor):
            return output.value.data
        found = [given_back(arrays[name], output.data_type) for name in output.tensors()]
        return found if isinstance(output.value, TensorSequence) else found[0]


class Session:
    """A model, ready to be run by the names of its inputs.

    model: checked. backends: as for `kernelyard.compile`. files: where weights lie that are not in it.
    threads: how many a run may use (None: the processors).
    Raises: what `kernelyard.compile` raises.

    Example:
        >>> from onnx import parser
        >>> text = '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
        >>> Session(parser.parse_model(text), backends=[]).run({"x": np.array([-1, 2], np.float32)})[0].tolist()
        [1.0, 2.0]
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        backends: Sequence[str] | str = "auto",
        files: WeightFiles | None = None,
        threads: int | None = None,
    ) -> None:
        self.model = model
        self.backends = backends
        self.files = files
        self.threads = threads
        weights = {tensor.name for tensor in model.graph.initializer}
        weights.update(sparse.values.name for sparse in model.graph.sparse_initializer)
        self.inputs = [info for info in model.graph.input if info.name not in weights]
        self._decided_by_value = frozenset(info.name for info in self.inputs if _is_text(info.type))
        self._kept: dict[Any, Compiled] = {}
        if not any(_is_open(info.type) for info in self.inputs):
            try:
                self._compiled({})
            except UndecidedInputsError as error:
                self._decided_by_value |= error.inputs

    @property
    def executable(self) -> Executable | None:
        """The program that serves every input, or None where inputs decide what the program is."""
        compiled = self._kept.get(())
        return None if compiled is None else compiled.executable

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs, in order: arrays, lists of arrays for sequences, None for an optional that holds nothing.

        Raises: InputNameError, InputTypeError, what `kernelyard.compile` raises where the inputs decide, and what
          `Executable.run` raises.
        """
        known = {info.name: info for info in self.inputs}
        for name in {*feeds} - {*known}:
            raise InputNameError(f"the model has no input {name!r}", found=name, expected=", ".join(known))
        for name, info in known.items():
            if name not in feeds and info.type.WhichOneof("value") != "optional_type":
                raise InputNameError(f"the input {name!r} is missing", expected=", ".join(known))
        given = {name: carried_value(feeds.get(name), info.type) for name, info in known.items()}
        while True:
            try:
                return self._compiled(given).run(given)
            except UndecidedInputsError as error:
                if error.inputs <= self._decided_by_value:
                    raise
                self._decided_by_value |= error.inputs

    def _compiled(self, given: Mapping[str, Any]) -> Compiled:
        values = {name: given[name] for name in sorted(self._decided_by_value) if name in given}
        open_inputs = [info.name for info in self.inputs if _is_open(info.type) and info.name in given]
        shapes = {name: _shape_of(given[name]) for name in open_inputs if name not in values}
        shapes.update(_empty_sizes({name: value for name, value in given.items() if name not in {*shapes, *values}}))
        key = (tuple(map(_fingerprint, values.items())), repr(shapes)) if values or shapes else ()
        if key not in self._kept:
            compiled = self._compile({"shapes": shapes, "values": values})
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = compiled
        return self._kept[key]

    def _compile(self, options: Mapping[str, Any]) -> Compiled:
        imported = import_structured(self.model, options, self.files)
        if not imported.module["main"].attrs["output_names"]:
            return Compiled(imported, None)
        executable = ky.compile(imported.module, backends=self.backends)
        executable.threads = self.threads
        return Compiled(imported, executable)


def flattened(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the feeds by name, each element of a sequence under its own."""
    flat: dict[str, Any] = {}
    for name, value in feeds.items():
        if isinstance(value, list):
            flat.update({item_name(name, index): item for index, item in enumerate(value)})
        else:
            flat[name] = value
    return flat


def carried_value(value: Any, type_: onnx.TypeProto) -> Any:
    """Convert a caller's value for an input of a type to the program's form.

    Raises: InputTypeError.
    """
    kind = type_.WhichOneof("value")
    if kind == "optional_type":
        return None if value is None else carried_value(value, type_.optional_type.elem_type)
    if kind == "sequence_type":
        if not isinstance(value, (list, tuple)):
            raise InputTypeError("the input is not a sequence", found=type(value).__name__, expected="a list of arrays")
        return [carried_value(item, type_.sequence_type.elem_type) for item in value]
    return carried(value, type_.tensor_type.elem_type)


def _is_text(type_: onnx.TypeProto) -> bool:
    return type_.WhichOneof("value") == "tensor_type" and type_.tensor_type.elem_type == onnx.TensorProto.STRING


def _is_open(type_: onnx.TypeProto) -> bool:
    """Return whether the program is specialized to the value: the number of tensors, or their rank, is open."""
    return type_.WhichOneof("value") != "tensor_type" or not type_.tensor_type.HasField("shape") or _is_text(type_)


def _shape_of(value: Any) -> Any:
    if value is None:
        return None
    return [_shape_of(item) for item in value] if isinstance(value, list) else tuple(np.shape(value))


def _empty_sizes(given: Mapping[str, Any]) -> dict[str, tuple[int | None, ...]]:
    """Return the sizes of empty tensors, such as the state before the first token: programs have sizes of 1 or more."""
    shapes = {
        name: np.shape(value) for name, value in given.items() if value is not None and not isinstance(value, list)
    }
    return {name: tuple(0 if size == 0 else None for size in shape) for name, shape in shapes.items() if 0 in shape}


def _fingerprint(entry: tuple[str, Any]) -> Any:
    name, value = entry
    if isinstance(value, list):
        return name, tuple(_fingerprint((name, item)) for item in value)
    if value is None:
        return name, None
    return name, value.shape, value.dtype.str, tuple(value.reshape(-1)) if value.dtype == object else value.tobytes()
