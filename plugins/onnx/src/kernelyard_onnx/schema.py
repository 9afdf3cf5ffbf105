"""ONNX operator schemas: the types of attributes, default values, function bodies."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx
from onnx import defs

from kernelyard.errors import ModelFormatError


def schema_of(proto: onnx.NodeProto, opset: int) -> Any:
    """Return the standard's entry (`onnx.defs.OpSchema`) for a node's operator in an opset, or None."""
    return _schema(proto.op_type, opset, "" if proto.domain == "ai.onnx" else proto.domain)


@cache
def _schema(op_type: str, opset: int, domain: str) -> Any:  # onnx's type stubs know half of an OpSchema
    if not defs.has(op_type, domain):
        return None
    try:
        return defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:  # the operator is newer than the model's opset
        return None


def check_node(proto: onnx.NodeProto, opset: int) -> None:
    """Raise ModelFormatError when a node is not what the standard says of its operator: attributes that do not exist,
    are missing or of another type, too few or too many inputs or outputs."""
    schema = schema_of(proto, opset)
    if schema is None:
        return
    _check_count(proto, "inputs", len(proto.input), schema.min_input, schema.max_input)
    _check_count(proto, "outputs", len(proto.output), schema.min_output, schema.max_output)
    known, names = schema.attributes, {attribute.name for attribute in proto.attribute}
    for attribute in proto.attribute:
        entry = known.get(attribute.name)
        if entry is None:
            raise _create_error(proto, f"there is no attribute {attribute.name!r}", attribute.name, ", ".join(known))
        if attribute.type != entry.type.value:
            problem = f"the attribute {attribute.name!r} has the wrong type"
            raise _create_error(proto, problem, _type_name(attribute.type), _type_name(entry.type.value))
    for name, entry in known.items():
        if entry.required and name not in names:
            raise _create_error(proto, f"the attribute {name!r} is missing", ", ".join(sorted(names)) or "none", name)


def _check_count(proto: onnx.NodeProto, what: str, found: int, least: int, most: int) -> None:
    if not least <= found <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise _create_error(proto, f"the number of {what} is wrong", str(found), expected)


def _create_error(proto: onnx.NodeProto, problem: str, found: str, expected: str) -> ModelFormatError:
    where = f"node {proto.name or next(iter(proto.output), '')!r} ({proto.op_type})"
    return ModelFormatError(problem, where=where, found=found, expected=expected)


def _type_name(number: int) -> str:
    names = onnx.AttributeProto.AttributeType
    return names.Name(number) if number in names.values() else str(number)  # pyright: ignore[reportArgumentType]
