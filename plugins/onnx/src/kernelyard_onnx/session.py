"""Session: a model that is compiled as far as it is decided, and for what its inputs decide when these are there.

Most models are compiled once. Where an input has no declared rank, is a sequence, an optional or text, where its value
decides what the program is, or where it is empty, the model is compiled for what is given, and kept for the next call
with the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import kernelyard as ky
from kernelyard.errors import (
    FrontendError,
    InputNameError,
    InputTypeError,
    KernelyardError,
    ShapeError,
    UnsupportedOperatorError,
)
from kernelyard.plugins.api import Expr
from kernelyard.runtime.api import LRU, Executable
from kernelyard_onnx.element_types import NARROW, carry
from kernelyard_onnx.external_data import WeightFiles
from kernelyard_onnx.importer import ImportedModel, import_structured
from kernelyard_onnx.outputs import ModelOutput
from kernelyard_onnx.specializer import Specializer, specializer_for
from kernelyard_onnx.text_prefix import cut_text
from kernelyard_onnx.values import LookedUpText, Maps, Nothing, StringTensor, TensorSequence, item_name

MAX_KEPT = 16
Finish = Callable[[np.ndarray], Any]


@dataclass(frozen=True)
class Compiled:
    """A model compiled for some inputs: the executable is None where nothing is left to compute."""

    imported: ImportedModel
    executable: Executable | None

    @property
    def plain(self) -> Executable | None:
        """The executable, where each of its results makes up an output of the model, in order."""
        is_plain = all(isinstance(each.value, (Expr, LookedUpText, Maps)) for each in self.imported.outputs)
        return self.executable if is_plain else None

    @property
    def finishers(self) -> tuple[Finish, ...] | None:
        """Return what makes each output of its one result; None where the results are the outputs as they are."""
        outputs = self.imported.outputs
        if all(isinstance(each.value, Expr) and each.data_type not in NARROW for each in outputs):
            return None
        return tuple(each.finisher for each in outputs)

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of the model, in order."""
        arrays: dict[str, np.ndarray] = {}
        if self.executable is not None:
            flat = flatten_sequences(feeds)
            results = self.executable.run({name: flat[name] for name in self.imported.input_names})
            arrays = {name: tensor.numpy() for name, tensor in results.items()}
        return [self._output(output, arrays) for output in self.imported.outputs]

    def _output(self, output: ModelOutput, arrays: Mapping[str, np.ndarray]) -> Any:
        if isinstance(output.value, Nothing):
            return None
        if isinstance(output.value, StringTensor):
            return output.value.data
        found = [output.finish(arrays[name]) for name in output.tensors()]
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
        self.inputs = Specializer(model.graph).model_inputs
        self._names = {info.name for info in self.inputs}
        cut = cut_text(model)
        self._prefix, model = cut or (None, model)
        self.model = model
        self.backends = backends
        self.files = files
        self.threads = threads
        self._whole: Compiled | None = None
        self._specializer = Specializer(model.graph, takes_data=True)
        self._kept: LRU[Any, Compiled] = LRU(MAX_KEPT)
        if not self._specializer.needs_inputs:
            try:
                self._whole = self._get_compiled({})
            except UnsupportedOperatorError as error:
                specializer = specializer_for(model, error, files, session_of_part, takes_data=True)
                if specializer is None:
                    raise
                self._specializer = specializer
        self._plain = None if self._whole is None else self._whole.plain
        self._finishers = None if self._whole is None else self._whole.finishers

    @property
    def executable(self) -> Executable | None:
        """The program that serves every input, or None where inputs decide what the program is."""
        return None if self._whole is None else self._whole.executable

    def try_plain(self, feeds: Mapping[str, Any]) -> list[Any] | None:
        """Return the outputs, in order, where one program takes tensors as they are; None, where `run` is to.

        It is `run` with nothing in between: a small model takes less time than conversions do.
        """
        if self._plain is None:
            return None
        if self._prefix is not None:
            if feeds.keys() != self._names:
                return None
            feeds = self._prefix.run(feeds)
        for value in feeds.values():  # faster than `any`
            if type(value) is not np.ndarray or not value.size:
                return None
        try:
            results = self._plain.run(feeds)
        except KernelyardError:  # `run` says it in the words of the model
            return None
        if self._finishers is None:
            return [tensor.numpy() for tensor in results.values()]
        return [finish(result.numpy()) for finish, result in zip(self._finishers, results.values(), strict=True)]

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
        if self._prefix is not None:
            feeds = self._prefix.run(feeds)
            known = {info.name: info for info in self._specializer.model_inputs}
        given = {name: convert_value(feeds.get(name), info.type) for name, info in known.items()}
        while True:
            try:
                return self._get_compiled(given).run(given)
            except ShapeError as error:
                return self._get_compiled_for_sizes(given, error).run(given)
            except FrontendError as error:
                if not self._specializer.learn(error, given):
                    raise

    def _get_compiled(self, given: Mapping[str, Any]) -> Compiled:
        key, options = self._specializer.specialize(given)
        return self._kept.get_or_make(key, lambda: self._compile(options))

    def _get_compiled_for_sizes(self, given: Mapping[str, Any], refusal: ShapeError) -> Compiled:
        """Return the model for these sizes alone, where the program of all refuses them, as too small for a window."""
        key, options = self._specializer.specialize(given)
        tensors = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
        sizes = {name: value.shape for name, value in tensors.items() if name not in options["values"]}
        whole = {**options, "shapes": {**options["shapes"], **sizes}}
        try:
            return self._kept.get_or_make((key, repr(sizes)), lambda: self._compile(whole))
        except KernelyardError as error:
            raise refusal from error

    def _compile(self, options: Mapping[str, Any]) -> Compiled:
        imported = import_structured(self.model, options, self.files)
        if not imported.module["main"].attrs["output_names"]:
            return Compiled(imported, None)
        executable = ky.compile(imported.module, backends=self.backends)
        executable.threads = self.threads
        executable.compile_for_refused_sizes = None  # the session does that, and need not hold the weights once more
        return Compiled(imported, executable)


def session_of_part(model: onnx.ModelProto, files: WeightFiles | None) -> Session:
    """Return a session with generated kernels alone, for a small part of a model.

    Raises: as `Session`.
    """
    return Session(model, [], files)


def flatten_sequences(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the feeds by name, each element of a sequence under its own."""
    flat: dict[str, Any] = {}
    for name, value in feeds.items():
        if isinstance(value, list):
            flat.update({item_name(name, index): item for index, item in enumerate(value)})
        else:
            flat[name] = value
    return flat


def convert_value(value: Any, type_: onnx.TypeProto) -> Any:
    """Convert a caller's value for an input of a type to the program's form.

    Raises: InputTypeError.
    """
    kind = type_.WhichOneof("value")
    if kind == "optional_type":
        return None if value is None else convert_value(value, type_.optional_type.elem_type)
    if kind == "sequence_type":
        if not isinstance(value, (list, tuple)):
            raise InputTypeError("the input is not a sequence", found=type(value).__name__, expected="a list of arrays")
        return [convert_value(item, type_.sequence_type.elem_type) for item in value]
    return carry(value, type_.tensor_type.elem_type)
