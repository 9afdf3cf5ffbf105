"""Operators that the ONNX standard defines by other operators: their bodies, to be converted in place of the node."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from kernelyard.plugins.api import Expr
from kernelyard_onnx.schema import schema_of
from kernelyard_onnx.tensors import DATA_TYPES
from kernelyard_onnx.values import Value


def function_body(proto: onnx.NodeProto, inputs: Sequence[Value | None], opset: int) -> onnx.FunctionProto | None:
    """Return the body of a standard operator for a node and the types of its inputs, or None when it has none."""
    schema = schema_of(proto, opset)
    if schema is None:
        return None
    if schema.has_function:
        return _parse(schema.function_body.SerializeToString())
    if not schema.has_context_dependent_function:
        return None
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions:
        return None
    if any(value is not None and not isinstance(value, Expr) for value in inputs):
        return None  # the library makes no body for these, and may end the process
    types = [_type_proto(value).SerializeToString() for value in inputs]
    return _parse(
        schema.get_context_dependent_function_with_opset_version(max(versions), proto.SerializeToString(), types)
    )


def default_attributes(proto: onnx.NodeProto, opset: int) -> list[onnx.AttributeProto]:
    """Return the standard's default attributes of a node's operator."""
    schema = schema_of(proto, opset)
    if schema is None:
        return []
    return [attribute.default_value for attribute in schema.attributes.values() if attribute.default_value.type]


def _parse(data: bytes) -> onnx.FunctionProto | None:
    body = onnx.FunctionProto()
    body.ParseFromString(data)
    return body if body.node else None


def _type_proto(value: Value | None) -> onnx.TypeProto:
    if not isinstance(value, Expr):
        return onnx.TypeProto()
    type_ = value.tensor_type
    shape = [dim if isinstance(dim, int) else str(dim) for dim in type_.shape]
    return helper.make_tensor_type_proto(DATA_TYPES[type_.dtype], shape)


def mark_omitted_inputs(node: onnx.NodeProto, left_out: set[str]) -> onnx.NodeProto:
    """Return the node with inputs that the caller left out marked as left out."""
    if not left_out.intersection(node.input):
        return node
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    del changed.input[:]
    changed.input.extend("" if name in left_out else name for name in node.input)
    return changed
