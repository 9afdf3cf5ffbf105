"""Messages of the Open Inference Protocol over gRPC, made from this text when they are first used.

They lie in a pool of their own, so that a client in the same process may bring its own. No code is generated, which
would be bound to one version of protobuf.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# Message: fields, as in a file of protobuf's language. `choice` fields are those of one `oneof`.
_MESSAGES = {
    "InferParameter": """choice bool bool_param = 1; choice int64 int64_param = 2; choice string string_param = 3;
        choice double double_param = 4; choice uint64 uint64_param = 5""",
    "InferTensorContents": """repeated bool bool_contents = 1; repeated int32 int_contents = 2;
        repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4; repeated uint64 uint64_contents = 5;
        repeated float fp32_contents = 6; repeated double fp64_contents = 7; repeated bytes bytes_contents = 8""",
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live = 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready = 1",
    "ModelReadyRequest": "string name = 1; string version = 2",
    "ModelReadyResponse": "bool ready = 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name = 1; string version = 2; repeated string extensions = 3",
    "ModelMetadataRequest": "string name = 1; string version = 2",
    "ModelMetadataResponse.TensorMetadata": "string name = 1; string datatype = 2; repeated int64 shape = 3",
    "ModelMetadataResponse": """string name = 1; repeated string versions = 2; string platform = 3;
        repeated ModelMetadataResponse.TensorMetadata inputs = 4;
        repeated ModelMetadataResponse.TensorMetadata outputs = 5; map<string> properties = 6""",
    "ModelInferRequest.InferInputTensor": """string name = 1; string datatype = 2; repeated int64 shape = 3;
        map<InferParameter> parameters = 4; InferTensorContents contents = 5""",
    "ModelInferRequest.InferRequestedOutputTensor": "string name = 1; map<InferParameter> parameters = 2",
    "ModelInferRequest": """string model_name = 1; string model_version = 2; string id = 3;
        map<InferParameter> parameters = 4; repeated ModelInferRequest.InferInputTensor inputs = 5;
        repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6; repeated bytes raw_input_contents = 7""",
    "ModelInferResponse.InferOutputTensor": """string name = 1; string datatype = 2; repeated int64 shape = 3;
        map<InferParameter> parameters = 4; InferTensorContents contents = 5""",
    "ModelInferResponse": """string model_name = 1; string model_version = 2; string id = 3;
        map<InferParameter> parameters = 4; repeated ModelInferResponse.InferOutputTensor outputs = 5;
        repeated bytes raw_output_contents = 6""",
    "RepositoryIndexRequest": "string repository_name = 1; bool ready = 2",
    "RepositoryIndexResponse.ModelIndex": "string name = 1; string version = 2; string state = 3; string reason = 4",
    "RepositoryIndexResponse": "repeated RepositoryIndexResponse.ModelIndex models = 1",
    "ModelRepositoryParameter": """choice bool bool_param = 1; choice int64 int64_param = 2;
        choice string string_param = 3; choice bytes bytes_param = 4""",
    # Triton names the repository first; KServe's messages begin with the name of the model.
    "RepositoryModelLoadRequest": """string repository_name = 1; string model_name = 2;
        map<ModelRepositoryParameter> parameters = 3""",
    "RepositoryModelLoadResponse": "string model_name = 1; bool isLoaded = 2",
    "RepositoryModelUnloadRequest": """string repository_name = 1; string model_name = 2;
        map<ModelRepositoryParameter> parameters = 3""",
    "RepositoryModelUnloadResponse": "string model_name = 1; bool isUnloaded = 2",
}
_FIELD = re.compile(r"(?:(repeated|choice) )?(?:(map)<([\w.]+)>|([\w.]+)) (\w+) = (\d+)")
_CHOICE = "parameter_choice"


def message(name: str) -> Any:
    """Return the class of a message."""
    return _classes()[name]


@cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="open_inference.proto", package=PACKAGE, syntax="proto3")
    made: dict[str, descriptor_pb2.DescriptorProto] = {}
    for name in sorted(_MESSAGES, key=lambda each: each.count(".")):  # those that hold others first
        outer, _, inner = name.rpartition(".")
        made[name] = made[outer].nested_type.add() if outer else file.message_type.add()
        made[name].name = inner
        for field in filter(None, map(str.strip, _MESSAGES[name].split(";"))):
            _add_field(made[name], f"{PACKAGE}.{name}", field)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


def _add_field(owner: descriptor_pb2.DescriptorProto, path: str, text: str) -> None:
    parsed = _FIELD.fullmatch(" ".join(text.split()))
    assert parsed is not None, text
    label, is_map, value_type, plain_type, name, number = parsed.groups()
    field = owner.field.add(name=name, number=int(number), label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
    if is_map or label == "repeated":
        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    if label == "choice":
        if not owner.oneof_decl:
            owner.oneof_decl.add(name=_CHOICE)
        field.oneof_index = 0
    if not is_map:
        _set_type(field, plain_type)
        return
    entry = owner.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
    entry.options.map_entry = True
    for key, kind, place in (("key", "string", 1), ("value", value_type, 2)):
        label_of = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
        _set_type(entry.field.add(name=key, number=place, label=label_of), kind)
    field.type, field.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, f".{path}.{entry.name}"


def _set_type(field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind in _MESSAGES:
        field.type, field.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
