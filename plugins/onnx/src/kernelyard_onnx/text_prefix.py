"""TextPrefix: the part of a model that turns text and maps into numbers, which NumPy runs before the program does.

Programs compute with tensors of numbers. Where all that is done with the text inputs of a model is to clean, split,
encode and count it, as the pipelines of scikit-learn do, the model is cut behind that: the numbers are inputs of the
rest. So it is where maps become tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kernelyard_onnx import text_steps
from kernelyard_onnx.attributes import decode
from kernelyard_onnx.external_data import WeightFiles
from kernelyard_onnx.text_counts import merge_counts

P = onnx.TensorProto
Arrays = dict[str, np.ndarray]
_PROBES = (2, 3)  # numbers of rows that tell which sizes follow from it


@dataclass(frozen=True)
class TextPrefix:
    """steps: each with its node's inputs, its output, and what computes it. outputs: numbers that the rest takes."""

    inputs: frozenset[str]
    constants: Arrays
    steps: tuple[tuple[tuple[str, ...], str, Callable[..., np.ndarray]], ...]
    outputs: tuple[str, ...]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the feeds of the rest of the model: numbers in place of text."""
        known: Arrays = {**self.constants}
        for name in self.inputs:
            known[name] = np.asarray(feeds[name], object)  # of a map, an array of no axes
        for inputs, output, step in self.steps:
            known[output] = step(*map(known.__getitem__, inputs))
        made = {name: known[name] for name in self.outputs}
        if len(feeds) > len(self.inputs):
            made |= {name: value for name, value in feeds.items() if name not in self.inputs}
        return made


@dataclass
class _Cut:
    """Collect what is found while the nodes are walked: names that hold text, and names of numbers made of it.

    maps: the types of inputs that are maps, whose names are among those of text.
    """

    constants: Arrays
    text: set[str]
    maps: Mapping[str, onnx.TypeProto.Map]
    numbers: dict[str, None] = field(default_factory=dict)
    steps: list[tuple[tuple[str, ...], str, Callable[..., np.ndarray]]] = field(default_factory=list)
    rest: list[onnx.NodeProto] = field(default_factory=list)

    def take(self, node: onnx.NodeProto) -> bool:
        """Add a node to the prefix or to the rest; False where it does with text what is no step."""
        if not self.text.intersection(node.input):
            self.rest.append(node)
            return True
        make = text_steps.STEPS.get((node.domain, node.op_type))
        names = tuple(node.input)
        if make is None or len(node.output) != 1 or not all(n in self.text or n in self.constants for n in names):
            return False
        attributes = decode(node.attribute, WeightFiles())
        if names[0] in self.maps:
            attributes = {**attributes, text_steps.MAP_VALUES: self.maps[names[0]].value_type.tensor_type.elem_type}
        elif (node.domain, node.op_type) in text_steps.OF_MAPS:
            return False
        found = make(attributes)
        if found is None:
            return False
        step, gives_text = found
        self.steps.append((names, node.output[0], step))
        if gives_text:
            self.text.add(node.output[0])
        else:
            self.numbers[node.output[0]] = None
        return True

    def prefix(self, inputs: frozenset[str]) -> TextPrefix:
        """Return the steps as a prefix, with the constants that they use."""
        used = {name for names, _, _ in self.steps for name in names}
        constants = {name: array for name, array in self.constants.items() if name in used}
        steps = merge_counts(self.steps, self.numbers)
        return TextPrefix(inputs, constants, steps, tuple(self.numbers))


def cut_text(model: onnx.ModelProto) -> tuple[TextPrefix, onnx.ModelProto] | None:
    """Return the prefix of a model whose inputs are text, and the rest; None where there is none, or it is not enough.

    Text that is a result of the model, that a subgraph reads, or that a step does not know is left to whoever compiles
    for the text that is given.
    """
    graph = model.graph
    maps = {info.name: info.type.map_type for info in graph.input if info.type.WhichOneof("value") == "map_type"}
    text = {info.name for info in graph.input if info.type.tensor_type.elem_type == P.STRING}
    inputs = {info.name: info for info in graph.input if info.name in {*maps, *text}}
    if not inputs or any(attribute.HasField("g") for node in graph.node for attribute in node.attribute):
        return None
    cut = _Cut(_constants(graph), set(inputs), maps)
    if not all(map(cut.take, graph.node)) or cut.text.intersection(info.name for info in graph.output):
        return None
    prefix = cut.prefix(frozenset(inputs))
    made = _inputs_of_rest(prefix, list(inputs.values()))
    return None if made is None else (prefix, _rest_of(model, cut, inputs, made))


def _constants(graph: onnx.GraphProto) -> Arrays:
    return {tensor.name: _array(tensor) for tensor in graph.initializer if tensor.data_location != P.EXTERNAL}


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    array = numpy_helper.to_array(tensor)
    return text_steps.decode(array) if tensor.data_type == P.STRING else array


def _inputs_of_rest(prefix: TextPrefix, infos: Sequence[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto] | None:
    """Return the inputs that the prefix makes; sizes that differ with the number of rows are open."""
    shapes: list[dict[str, tuple[int, ...]]] = []
    types: dict[str, int] = {}
    for rows in _PROBES:
        feeds: dict[str, Any] = {}
        for info in infos:
            if info.type.WhichOneof("value") == "map_type":
                feeds[info.name] = _map_of(rows, info.type.map_type)
                continue
            dims = info.type.tensor_type.shape.dim
            if not dims:
                return None
            feeds[info.name] = np.full([dim.dim_value or rows for dim in dims], "", object)
        made = prefix.run(feeds)
        shapes.append({name: made[name].shape for name in prefix.outputs})
        types = {name: helper.np_dtype_to_tensor_dtype(made[name].dtype) for name in prefix.outputs}
    names = {_PROBES: f"rows of {infos[0].name}"}
    infos_made: list[onnx.ValueInfoProto] = []
    for name in prefix.outputs:
        pairs = zip(*(each[name] for each in shapes), strict=True)
        sizes = [pair[0] if pair[0] == pair[1] else names.get(pair) for pair in pairs]
        infos_made.append(helper.make_tensor_value_info(name, types[name], sizes))
    return infos_made


def _map_of(count: int, type_: onnx.TypeProto.Map) -> dict[Any, Any]:
    is_text = type_.value_type.tensor_type.elem_type == P.STRING
    keys = [str(key) if type_.key_type == P.STRING else key for key in range(count)]
    return dict.fromkeys(keys, "0" if is_text else 0)


def _rest_of(
    model: onnx.ModelProto, cut: _Cut, inputs: Mapping[str, Any], made: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    kept = [info for info in model.graph.input if info.name not in inputs]
    for field_name, entries in (("node", cut.rest), ("input", [*kept, *made])):
        del getattr(rest.graph, field_name)[:]
        getattr(rest.graph, field_name).extend(entries)
    del rest.graph.value_info[:]
    return rest
