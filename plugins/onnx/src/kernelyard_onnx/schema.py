"""What the ONNX standard says of an operator: the types of its attributes, its default values, its body."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx
from onnx import defs

from kernelyard.errors import ModelFormatError


def schema_of(proto: onnx.NodeProto, opset: int) -> Any:
    """The standard's entry (`onnx.defs.OpSchema`) for a node's operator in an opset, or None."""
    return _schema(proto.op_type, opset, "" if proto.domain == "ai.onnx" else proto.domain)


@cache
def _schema(op_type: str, opset: int, domain: str) -> Any:  # onnx's type stubs know half of an OpSchema
    if not defs.has(op_type, domain):
        return None
    try:
        return defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:  # the operator is newer than the model's opset
        return None


@cache
def _attribute_types(op_type: str, opset: int, domain: str) -> dict[str, int]:
    schema = _schema(op_type, opset, domain)
    return {} if schema is None else {name: entry.type.value for name, entry in schema.attributes.items()}


def check_attributes(proto: onnx.NodeProto, opset: int) -> None:
    """Raise ModelFormatError when an attribute has another type than the standard gives it."""
    if not proto.attribute:
        return
    known = _attribute_types(proto.op_type, opset, "" if proto.domain == "ai.onnx" else proto.domain)
    for attribute in proto.attribute:
        expected = known.get(attribute.name, attribute.type)
        if attribute.type != expected:
            raise ModelFormatError(
                f"the attribute {attribute.name!r} has the wrong type",
                where=f"node {proto.name or next(iter(proto.output), '')!r} ({proto.op_type})",
                found=_type_name(attribute.type),
                expected=_type_name(expected),
            )


def _type_name(number: int) -> str:
    names = onnx.AttributeProto.AttributeType
    return names.Name(number) if number in names.values() else str(number)  # pyright: ignore[reportArgumentType]
