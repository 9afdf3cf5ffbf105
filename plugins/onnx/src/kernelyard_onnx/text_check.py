"""A check that all names in a model are text: protobuf hands out bytes where a damaged file has no valid UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from kernelyard.errors import ModelFormatError


def check_texts(model: onnx.ModelProto, where: str) -> None:
    """Raise ModelFormatError unless every name that the importer reads is text."""
    for text in _texts_of_model(model):
        if not isinstance(text, str):
            raise ModelFormatError(
                "the model is corrupt: a name in it is not valid UTF-8", where=where, found=repr(text)
            )


def _texts_of_model(model: onnx.ModelProto) -> Iterator[object]:
    for entry in model.metadata_props:
        yield from (entry.key, entry.value)
    yield from (entry.domain for entry in model.opset_import)
    yield from _texts_of_graph(model.graph)
    for function in model.functions:
        yield from (function.domain, function.name, function.overload, *function.input, *function.output)
        yield from (attribute.name for attribute in function.attribute_proto)
        yield from _texts_of_nodes(function.node)


def _texts_of_graph(graph: onnx.GraphProto) -> Iterator[object]:
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)
    yield from _texts_of_nodes(graph.node)


def _texts_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[object]:
    for node in nodes:
        yield from (node.op_type, node.domain, node.name, node.overload, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
            if attribute.HasField("g"):
                yield from _texts_of_graph(attribute.g)
