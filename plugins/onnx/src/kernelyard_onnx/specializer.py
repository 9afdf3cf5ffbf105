"""Specializer: which sizes and values a model is compiled for, where no program serves them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from kernelyard.errors import FrontendError, KernelyardError, UnsupportedOperatorError
from kernelyard.plugins.api import ModelSpecializer, Specialization
from kernelyard.runtime.api import TensorInfo
from kernelyard_onnx.computed_values import ComputedValues, MakeSession
from kernelyard_onnx.external_data import WeightFiles
from kernelyard_onnx.importer import import_model, import_structured
from kernelyard_onnx.tensors import DTYPES
from kernelyard_onnx.undecided import UndecidedInputsError

SOME_SIZE = 16
FEW = 64  # elements of an input whose values are taken for sizes, axes and switches
_WHOLE = (onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL)


class Specializer(ModelSpecializer):
    """Decides by the errors of compiles what is fixed: sizes first, then values of few whole numbers.

    Inputs without a rank, sequences, optionals and texts are fixed in any case. takes_data: tensors of any dtype and
    size may be fixed to their values. computed: computes tensors inside of the model, which are fixed where inputs that
    are no few whole numbers decide.
    """

    def __init__(
        self, graph: onnx.GraphProto, *, takes_data: bool = False, computed: ComputedValues | None = None
    ) -> None:
        weights = {tensor.name for tensor in graph.initializer}
        weights.update(sparse.values.name for sparse in graph.sparse_initializer)
        self.model_inputs = [info for info in graph.input if info.name not in weights]
        self.inputs = tuple(map(_tensor_info, self.model_inputs))
        self.outputs = tuple(map(_tensor_info, graph.output))
        self.needs_inputs = any(_is_open(info.type) for info in self.model_inputs)
        self._takes_data = takes_data
        self._computed = computed
        self._decided: frozenset[str] = frozenset()
        self._fixes_sizes = False
        self._by_value = frozenset(info.name for info in self.model_inputs if _is_text(info.type))

    def learn(self, error: FrontendError, feeds: Mapping[str, Any]) -> bool:
        """See `ModelSpecializer.learn`."""
        named = error.inputs if isinstance(error, UndecidedInputsError) else frozenset()
        few = frozenset(info.name for info in self.model_inputs if _is_few(info.type, feeds.get(info.name)))
        tensors = error.tensors - self._decided if isinstance(error, UndecidedInputsError) else frozenset()
        if self._computed is not None and tensors and not named <= few:
            self._decided |= tensors
            return True
        wanted = (named if self._takes_data else named & few) - self._by_value
        if not wanted or not wanted <= few:
            if not self._fixes_sizes and any(_has_open_sizes(info.type) for info in self.model_inputs):
                self._fixes_sizes = True
                return True
            wanted = wanted or (few & feeds.keys()) - self._by_value
        self._by_value |= wanted
        return bool(wanted)

    def specialize(self, feeds: Mapping[str, Any]) -> Specialization:
        """See `ModelSpecializer.specialize`."""
        values = self._values(feeds)
        infos = [info for info in self.model_inputs if info.name in feeds and info.name not in values]
        fixed = [info.name for info in infos if _is_open(info.type) or self._fixes_sizes]
        shapes = {name: _shape_of(feeds[name]) for name in fixed}
        shapes.update(_empty_sizes({name: value for name, value in feeds.items() if name not in {*shapes, *values}}))
        key = (tuple(map(_fingerprint, values.items())), repr(shapes)) if values or shapes else ()
        return Specialization(key, {"shapes": shapes, "values": values})

    def _values(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is fixed to its value: inputs, and tensors inside of the model."""
        values = {name: feeds[name] for name in sorted(self._by_value) if name in feeds}
        if self._computed is not None:
            values.update({name: self._computed.value(name, feeds) for name in sorted(self._decided)})
        return values


def specializer_for(
    model: onnx.ModelProto,
    error: UnsupportedOperatorError,
    files: WeightFiles | None,
    make_session: MakeSession,
    *,
    takes_data: bool = False,
) -> Specializer | None:
    """Return what may compile a model that was refused, once inputs are there; None where their sizes decide nothing.

    error: the refusal. make_session: see `ComputedValues`. takes_data: see `Specializer`.
    Where sizes are open, the model is read once with some sizes:
    what is refused then, too, is not refused for its sizes.
    """
    computed = ComputedValues(model, files, make_session)
    specializer = Specializer(model.graph, takes_data=takes_data, computed=computed)
    if not specializer.learn(error, {}):
        return None
    read = import_structured if takes_data else import_model  # whoever takes any data takes outputs of any kind
    is_decided_by_inputs = isinstance(error, UndecidedInputsError) or not _is_refused_again(read, model, files, error)
    return specializer if is_decided_by_inputs else None


def is_valid(model: Any, proto: onnx.ModelProto) -> bool:
    """Return whether onnx's checker accepts a model: a path, the bytes of a file, or a ModelProto; and that as read.

    Outputs need not declare a shape: where data decides their rank, there is none.
    """
    if _passes(model):
        return True
    if all(output.type.tensor_type.HasField("shape") for output in proto.graph.output):
        return False
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    graph, declared = copy.graph, {info.name for info in copy.graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name not in declared
    )
    graph.ClearField("initializer")  # weights may lie elsewhere, where the checker does not look
    names = [output.name for output in graph.output]
    graph.ClearField("output")
    graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ()) for name in names)
    return _passes(copy)


def _passes(model: Any) -> bool:
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError):  # ValueError: larger than a protobuf message may be
        return False
    return True


def _is_refused_again(
    read: Callable[..., object], model: onnx.ModelProto, files: WeightFiles | None, before: UnsupportedOperatorError
) -> bool:
    """Return whether a model is refused with some sizes for a reason for which it is refused with open ones."""
    shapes = {
        info.name: tuple(dim.dim_value if dim.dim_value > 0 else SOME_SIZE for dim in info.type.tensor_type.shape.dim)
        for info in Specializer(model.graph).model_inputs
        if _has_open_sizes(info.type)
    }
    try:
        read(model, {"shapes": shapes}, files)
    except UnsupportedOperatorError as error:
        return bool(_reasons(error) & _reasons(before))  # that some sizes do not fit each other is another one
    except KernelyardError:  # the model does not work on that size, which says nothing of others
        return False
    return False


def _reasons(error: UnsupportedOperatorError) -> frozenset[str]:
    return frozenset((error.where or "").split("; "))


def _tensor_info(info: onnx.ValueInfoProto) -> TensorInfo:
    tensor = info.type.tensor_type
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{info.name}_{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    )
    return TensorInfo(info.name, shape, DTYPES.get(tensor.elem_type, ""))


def _is_text(type_: onnx.TypeProto) -> bool:
    return type_.WhichOneof("value") == "tensor_type" and type_.tensor_type.elem_type == onnx.TensorProto.STRING


def _is_open(type_: onnx.TypeProto) -> bool:
    """Return whether the program is specialized to the value: the number of tensors, or their rank, is open."""
    return type_.WhichOneof("value") != "tensor_type" or not type_.tensor_type.HasField("shape") or _is_text(type_)


def _has_open_sizes(type_: onnx.TypeProto) -> bool:
    return any(dim.dim_value <= 0 for dim in type_.tensor_type.shape.dim)


def _is_few(type_: onnx.TypeProto, value: Any) -> bool:
    """Return whether an input is of whole numbers, and few as far as that is known."""
    if type_.WhichOneof("value") != "tensor_type" or type_.tensor_type.elem_type not in _WHOLE:
        return False
    declared = math.prod(dim.dim_value or 1 for dim in type_.tensor_type.shape.dim)
    return (np.size(value) if isinstance(value, np.ndarray) else declared) <= FEW


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
