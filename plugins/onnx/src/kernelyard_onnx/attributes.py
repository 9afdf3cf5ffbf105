"""AttributeProto -> Python values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx

from kernelyard.errors import ModelFormatError
from kernelyard_onnx.external_data import WeightFiles
from kernelyard_onnx.tensors import from_sparse, to_array, to_text

A = onnx.AttributeProto
_SIMPLE: dict[int, Callable[[onnx.AttributeProto], Any]] = {
    A.FLOAT: lambda a: a.f,
    A.INT: lambda a: a.i,
    A.STRING: lambda a: a.s.decode("utf-8", "replace"),
    A.GRAPH: lambda a: a.g,
    A.FLOATS: lambda a: tuple(a.floats),
    A.INTS: lambda a: tuple(a.ints),
    A.STRINGS: lambda a: tuple(item.decode("utf-8", "replace") for item in a.strings),
    A.GRAPHS: lambda a: tuple(a.graphs),
    A.TYPE_PROTO: lambda a: a.tp,
}


def resolve_references(proto: onnx.NodeProto, outer: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Return the node with attributes that refer to an attribute of the function around replaced by what that one
    holds.
    """
    if not any(attribute.ref_attr_name for attribute in proto.attribute):
        return proto
    resolved = onnx.NodeProto()
    resolved.CopyFrom(proto)
    del resolved.attribute[:]
    for attribute in proto.attribute:
        source = outer.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if source is not None:
            resolved.attribute.add().CopyFrom(source)
            resolved.attribute[-1].name = attribute.name
    return resolved


def decode(attributes: Iterable[onnx.AttributeProto], files: WeightFiles) -> dict[str, Any]:
    """Return the attributes as Python values, by name."""
    return {attribute.name: _value(attribute, files) for attribute in attributes}


def _value(attribute: onnx.AttributeProto, files: WeightFiles) -> Any:
    simple = _SIMPLE.get(attribute.type)
    if simple is not None:
        return simple(attribute)
    if attribute.type == A.TENSOR and attribute.t.data_type == onnx.TensorProto.STRING:
        return to_text(attribute.t)
    if attribute.type == A.TENSOR:
        return to_array(attribute.t, files)
    if attribute.type == A.SPARSE_TENSOR:
        return from_sparse(attribute.sparse_tensor, files)
    raise ModelFormatError(
        f"the attribute {attribute.name!r} has a type that is not known",
        found=attribute.type,
        expected="a number, a string, a tensor, a graph, or a list of these",
    )
