"""Write a module as an ONNX model that other engines run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

import kernelyard
from kernelyard.dims import Dim
from kernelyard.errors import KernelyardError
from kernelyard.plugins.api import Call, Expr, Function, IRModule, TensorType, Tuple, TupleGetItem, Var
from kernelyard_onnx_export import converters, networks, quantized  # noqa: F401  they register converters
from kernelyard_onnx_export.graph_writer import DtypeError, GraphWriter, MeaningError, element_type
from kernelyard_onnx_export.registry import CONVERTERS

IR_VERSION = 10
MAIN = "main"


class ExportError(KernelyardError):
    """A module cannot be written as an ONNX model; all operators that stand in the way are listed."""

    code = "KY410"


def to_onnx(module: IRModule, external: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """Return the function `main` of a module as an ONNX model, of opset 20, or 21 where it needs that.

    Inputs and outputs keep their names, and the model its metadata. quantize and dequantize become QuantizeLinear and
    DequantizeLinear, and what is added to a product its bias, so that engines find quantized layers.
    external: gets the data of large constants by the name of the initializer, whose data is left out of the model and
    neither copied nor read.
    Raises: ExportError for operators without a converter, and for sizes that no input has.

    Example:
        >>> import kernelyard.ops
        >>> from kernelyard.plugins.api import FunctionBuilder
        >>> b = FunctionBuilder()
        >>> module = IRModule({"main": b.function(b.op("nn.relu", b.input("x", (2,))))})
        >>> [node.op_type for node in to_onnx(module).graph.node]
        ['Relu']
    """
    function = module.functions.get(MAIN)
    if not isinstance(function, Function):
        raise ExportError("the module has no graph-level function to write", expected=f"@{MAIN}")
    _check_operators(function)
    return _Exporter(function, module.attrs.get("metadata", {}), external).model()


def _check_operators(function: Function) -> None:
    calls = [binding.value for binding in function.bindings if isinstance(binding.value, Call)]
    missing = Counter(call.op_name for call in calls if call.op_name not in CONVERTERS)
    if missing:
        raise ExportError(
            "the model has operators that cannot be written as ONNX",
            found=", ".join(f"{name} ({count})" for name, count in sorted(missing.items())),
            hint="save it compiled: kernelyard.compile(model).save('model.kyar'), or on the command line -o model.kyar",
        )


class _Exporter:
    def __init__(self, function: Function, metadata: Mapping[str, str], external: dict[str, np.ndarray] | None) -> None:
        self._function = function
        self._metadata = metadata
        self._results = function.result.fields if isinstance(function.result, Tuple) else (function.result,)
        self._inputs = self._read_names("input_names", [param.name for param in function.params])
        self._outputs = self._read_names("output_names", [f"output_{n}" for n in range(len(self._results))])
        self._writer = GraphWriter(function, [*self._inputs, *self._outputs], external)

    def _read_names(self, attribute: str, otherwise: Sequence[str]) -> Sequence[str]:
        names = self._function.attrs.get(attribute, ())
        return names if len(names) == len(otherwise) else otherwise

    def model(self) -> onnx.ModelProto:
        """Return the whole model."""
        for param, name in zip(self._function.params, self._inputs, strict=True):
            self._writer.name_input(param, name)
        fused = quantized.find_fused_biases(self._function)
        for binding in self._function.bindings:
            if binding.var not in fused.absorbed:
                self._writer.bind(binding.var, self._names_of(binding.var, binding.value, fused))
        for result, name in zip(self._results, self._outputs, strict=True):
            self._writer.nodes.append(helper.make_node("Identity", [self._writer.name(result)], [name], name=name))
        return self._model()

    def _names_of(self, var: Var, value: Expr, fused: quantized.Biases) -> Sequence[str]:
        try:
            return self._write(var, value, fused)
        except KeyError as error:
            raise ExportError(
                "a size is not known from the sizes of inputs", where=f"{var!r} {var.origin}".strip(), found=error
            ) from error
        except DtypeError as error:
            where = f"{var!r} {var.origin}".strip()
            raise ExportError("ONNX has no operator for a dtype", where=where, found=error) from error
        except MeaningError as error:
            where = f"{var!r} {var.origin}".strip()
            raise ExportError("ONNX's operator would compute something else", where=where, found=error) from error

    def _write(self, var: Var, value: Expr, fused: quantized.Biases) -> Sequence[str]:
        writer = self._writer
        if isinstance(value, Call):
            product = fused.products.get(var)
            if product is not None:
                return [quantized.with_bias(writer, *product)]
            found = quantized.write_blocked_weight(writer, value) or CONVERTERS[value.op_name](writer, value)
            return [found] if isinstance(found, str) else found
        if isinstance(value, Tuple):
            return [writer.name(field) for field in value.fields]
        if isinstance(value, TupleGetItem):
            return [writer.names_of(value.tuple_value)[value.index]]
        return writer.names_of(value)

    def _model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            _find_needed(self._writer.nodes, self._outputs),
            "kernelyard",
            [_info(n, p.tensor_type) for n, p in zip(self._inputs, self._function.params, strict=True)],
            [_info(n, r.tensor_type) for n, r in zip(self._outputs, self._results, strict=True)],
        )
        read = {name for node in graph.node for name in node.input}
        graph.initializer.extend(tensor for tensor in self._writer.initializers if tensor.name in read)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self._writer.opset)],
            ir_version=IR_VERSION,
            producer_name="kernelyard",
            producer_version=kernelyard.__version__,
        )
        helper.set_model_props(model, dict(self._metadata))
        return model


def _find_needed(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the nodes that the outputs need, in order."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    return kept[::-1]


def _info(name: str, type_: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type(type_.dtype), [_size(dim) for dim in type_.shape])


def _size(dim: Dim) -> Any:
    return dim if isinstance(dim, int) else str(dim)
