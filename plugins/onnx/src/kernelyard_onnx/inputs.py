"""Graph inputs -> parameters with static or symbolic shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from kernelyard.dims import Dim, Shape
from kernelyard.dtypes import to_numpy
from kernelyard.errors import FrontendError, IRError, ModelFormatError, UnsupportedOperatorError, did_you_mean
from kernelyard.plugins.api import Constant, Expr, FunctionBuilder
from kernelyard_onnx.element_types import NARROW
from kernelyard_onnx.options import ImportOptions
from kernelyard_onnx.problems import SESSION_HINT
from kernelyard_onnx.symbol_names import SymbolNames
from kernelyard_onnx.tensors import DTYPES, type_name
from kernelyard_onnx.values import Nothing, StringTensor, TensorSequence, Value, item_name

_KINDS = {"tensor_type": "text", "sequence_type": "a sequence", "optional_type": "an optional", "map_type": "a map"}


def add_parameters(
    builder: FunctionBuilder,
    graph: onnx.GraphProto,
    values: dict[str, Value],
    options: ImportOptions,
    symbols: SymbolNames,
    element_types: dict[Value, int],
) -> None:
    """Add a parameter per graph input that is not a weight (`values` has the weights), and enter it in `values`.

    An input that is also an initializer is that initializer: old files list all weights as inputs. A sequence becomes
    as many parameters as the option `shapes` has shapes for it.
    Raises: ModelFormatError, UnsupportedOperatorError (inputs of unknown structure), FrontendError (options).
    """
    inputs = [value for value in graph.input if value.name not in values]
    _check_names([value.name for value in inputs], [name for node in graph.node for name in node.output], options)
    for value in inputs:
        _fix_labels(value, symbols, options)
    for value in inputs:
        made = _Parameters(builder, options, symbols, element_types).value_of(value)
        values[value.name] = made


@dataclass(frozen=True)
class _Parameters:
    """The values of graph inputs: parameters, sequences of parameters, constants."""

    builder: FunctionBuilder
    options: ImportOptions
    symbols: SymbolNames
    element_types: dict[Value, int]

    def value_of(self, value: onnx.ValueInfoProto) -> Value:
        """Return the value of a graph input."""
        type_, name = value.type, value.name
        fixed, shapes = self.options.values, self.options.shapes
        if type_.WhichOneof("value") == "optional_type":
            if (name in fixed and fixed[name] is None) or (name in shapes and shapes[name] is None):
                return Nothing()
            _check_decided(value, name in fixed or name in shapes)
            type_ = type_.optional_type.elem_type
        if type_.WhichOneof("value") != "sequence_type":
            return self._tensor(_info(name, type_), fixed.get(name), name in fixed)
        _check_decided(value, isinstance(fixed.get(name, shapes.get(name)), list))
        item_type = type_.sequence_type.elem_type
        if name in fixed:
            items = [self._tensor(_info(name, item_type), item, True) for item in fixed[name]]
        else:
            infos = [_info(item_name(name, index), item_type, s) for index, s in enumerate(shapes[name])]
            items = [self._tensor(info, None, False) for info in infos]
        tensors = tuple(item for item in items if isinstance(item, Expr))
        if len(tensors) != len(items):
            raise UnsupportedOperatorError(f"the input {name!r} is a sequence of text", where=f"input {name!r}")
        return TensorSequence(tensors)

    def _tensor(self, value: onnx.ValueInfoProto, given: Any, fixed: bool) -> Value:
        data_type = value.type.tensor_type.elem_type
        if data_type == onnx.TensorProto.STRING and value.type.HasField("tensor_type"):
            _check_decided(value, fixed)
            return StringTensor(np.asarray(given, object))
        dtype = _dtype(value)
        made = _read_fixed_value(value, dtype, given) if fixed else self._parameter(value, dtype)
        if data_type in NARROW:
            self.element_types[made] = data_type
        return made

    def _parameter(self, value: onnx.ValueInfoProto, dtype: str) -> Expr:
        shape = _shape(value, self.symbols, self.options)
        try:
            return self.builder.input(value.name, shape, dtype)
        except IRError as error:
            raise ModelFormatError(
                f"an input has a shape that no tensor has: {error.message}",
                where=f"input {value.name!r}",
                found=error.found,
                expected=error.expected,
            ) from error


def _info(name: str, type_: onnx.TypeProto, shape: Sequence[int] | None = None) -> onnx.ValueInfoProto:
    """Return an input of a type, of a given shape where there is one."""
    info = onnx.ValueInfoProto(name=name, type=type_)
    if shape is not None:
        info.type.tensor_type.shape.Clear()
        for size in shape:
            info.type.tensor_type.shape.dim.add(dim_value=size)
        info.type.tensor_type.shape.SetInParent()
    return info


def _check_decided(value: onnx.ValueInfoProto, decided: bool) -> None:
    if not decided:
        kind = value.type.WhichOneof("value")
        raise UnsupportedOperatorError(
            f"the input {value.name!r} is not a tensor of numbers",
            where=f"input {value.name!r}",
            found=_KINDS.get(kind, str(kind)),
            expected="a tensor of numbers",
            hint=f"{SESSION_HINT}; or fix its value (option values), or the shapes of its tensors (option shapes)",
        )


def _read_fixed_value(value: onnx.ValueInfoProto, dtype: str, given: np.ndarray) -> Constant:
    """Return an input that the options turn into a constant."""
    declared = value.type.tensor_type.shape.dim if value.type.tensor_type.HasField("shape") else None
    fits = declared is None or (
        len(declared) == given.ndim
        and all(dim.dim_value in (size, 0, -1) for dim, size in zip(declared, given.shape, strict=True))
    )
    if not fits or not np.can_cast(given.dtype, to_numpy(dtype), "same_kind"):
        raise FrontendError(
            f"the option values does not fit the input {value.name!r}",
            found=f"{given.dtype} of shape {given.shape}",
            expected=f"{dtype} of rank {0 if declared is None else len(declared)}",
        )
    return Constant(given.astype(to_numpy(dtype)))


def _fix_labels(value: onnx.ValueInfoProto, symbols: SymbolNames, options: ImportOptions) -> None:
    """Fix every dimension with the label of a dimension whose size the options fix."""
    for declared, size in zip(value.type.tensor_type.shape.dim, options.shapes.get(value.name) or (), strict=False):
        if size is not None and not declared.HasField("dim_value"):
            symbols.fix(declared.dim_param, size)


def _check_names(names: list[str], made: list[str], options: ImportOptions) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ModelFormatError(f"two graph inputs are called {repeated!r}", where="the graph's inputs")
    for option, given, known in (("shapes", options.shapes, names), ("values", options.values, [*names, *made])):
        for name in set(given) - set(known):
            raise FrontendError(
                f"the option {option} names an input {name!r} that the model does not have",
                expected=", ".join(names),
                hint=did_you_mean(name, names),
            )


def _dtype(value: onnx.ValueInfoProto) -> str:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedOperatorError(
            f"the input {value.name!r} is not a tensor",
            where=f"input {value.name!r}",
            found=_KINDS.get(kind, str(kind)),
            expected="a tensor",
            hint=SESSION_HINT,
        )
    data_type = value.type.tensor_type.elem_type
    if data_type in NARROW:
        return NARROW[data_type][0]
    if data_type not in DTYPES:
        raise UnsupportedOperatorError(
            f"the input {value.name!r} has an element type that is not supported",
            where=f"input {value.name!r}",
            found=type_name(data_type),
            expected=", ".join(type_name(key) for key in DTYPES),
        )
    return DTYPES[data_type]


def _shape(value: onnx.ValueInfoProto, symbols: SymbolNames, options: ImportOptions) -> Shape:
    chosen = options.shapes.get(value.name)
    if not value.type.tensor_type.HasField("shape"):
        if chosen is None:
            raise ModelFormatError(
                f"the input {value.name!r} has no declared rank",
                where=f"input {value.name!r}",
                hint=f"give it with the option shapes: {{{value.name!r}: (1, None, ...)}}",
            )
        return tuple(symbols.of_label("", value.name, axis) if n is None else n for axis, n in enumerate(chosen))
    declared = value.type.tensor_type.shape.dim
    if chosen is not None and len(chosen) != len(declared):
        raise FrontendError(
            f"the option shapes has the wrong rank for input {value.name!r}",
            found=len(chosen),
            expected=f"{len(declared)} sizes",
        )
    fixed = chosen or (None,) * len(declared)
    return tuple(_dim(value.name, axis, dim, fixed[axis], symbols) for axis, dim in enumerate(declared))


def _dim(
    name: str, axis: int, declared: onnx.TensorShapeProto.Dimension, chosen: int | None, symbols: SymbolNames
) -> Dim:
    if not declared.HasField("dim_value") or declared.dim_value < 0:
        return chosen if chosen is not None else symbols.of_label(declared.dim_param, name, axis)
    if chosen is not None and chosen != declared.dim_value:
        raise FrontendError(
            f"the option shapes contradicts the model's shape of input {name!r}",
            where=f"axis {axis}",
            found=chosen,
            expected=declared.dim_value,
        )
    return declared.dim_value
