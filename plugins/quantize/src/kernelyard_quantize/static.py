"""Static quantization: quantize and dequantize around values, with the parameters that calibration found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from kernelyard.ir import Binding, Call, Constant, Expr, Function, Var, with_operands
from kernelyard.ir.expr import replace_operands
from kernelyard.ir.visitor import definitions
from kernelyard_quantize.instrumented import Emitter
from kernelyard_quantize.layers import Layer, find_quantized_values, sources
from kernelyard_quantize.parameters import LARGEST_BIAS, Parameters
from kernelyard_quantize.quantizer import Quantizer, StoredWeight


class StaticQuantizer(Quantizer):
    """Stores values with the parameters of calibration.

    Whatever reads a stored value reads what is dequantized of it; results of the function stay as they are. A constant
    that is added to a layer is rounded to a multiple of the product of both scales, as which int32 stores it.
    parameters: of each value that may be stored. operators: see `QuantizationScheme`.
    """

    def __init__(self, function: Function, parameters: Mapping[Var, Parameters], operators: Collection[str]) -> None:
        self._values = definitions(function)
        self._parameters = parameters
        self._operators = operators

    def data(self, emit: Emitter, x: Var) -> Var:
        """Return a value stored and restored; one that is moved has the parameters of what it is moved from."""
        parameters = self._parameters[sources(x, self._values)[0]]
        return _restore(emit, x, parameters)

    def weight(self, emit: Emitter, layer: Layer) -> Var:
        """Return what restores a weight."""
        return self.quantize_weight(layer).emit_dequantize(emit)

    def quantize_weight(self, layer: Layer) -> StoredWeight:
        """Return the weight of a layer, with scales large enough for int32 to hold its bias."""
        if layer.bias is None:
            return StoredWeight.of(layer)
        least = np.abs(layer.bias.data) / (self._scale(layer) * np.float32(LARGEST_BIAS))
        by_channel = layer.axis is not None and least.size == layer.call.args[1].tensor_type.shape[layer.axis]
        return StoredWeight.of(layer, least.reshape(-1) if by_channel else least.max(initial=0))

    def _scale(self, layer: Layer) -> np.ndarray:
        """Return the scale of a layer's data."""
        return self._parameters[sources(layer.data[0], self._values)[0]].scale

    def unit(self, layer: Layer) -> np.ndarray:
        """Return the real number that 1 in a layer's sum of integers stands for, to broadcast with the result."""
        unit = self.quantize_weight(layer).scales * self._scale(layer)
        if not unit.ndim or layer.call.op_name == "matmul":
            return unit
        return unit.reshape(-1, *(1,) * (layer.call.tensor_type.rank - 2))

    def rewrite(self, function: Function, layers: Sequence[Layer]) -> Function:
        """Return the function with these layers quantized, and values stored before they are moved or pooled."""
        stored = find_quantized_values(function, layers, self._operators)
        return _Rewriter(layers, {var: self._parameters[var] for var in stored}, self).rewritten(function)


def _restore(emit: Emitter, x: Var, parameters: Parameters) -> Var:
    scale, zero = parameters
    return emit("dequantize", emit("quantize", x, scale, zero, dtype=parameters.dtype), scale, zero)


class _Rewriter:
    def __init__(
        self, layers: Sequence[Layer], parameters: Mapping[Var, Parameters], quantizer: StaticQuantizer
    ) -> None:
        self._layers = {layer.var: layer for layer in layers}
        self._parameters = parameters
        self._quantizer = quantizer
        self._emit = Emitter()
        self._restored: dict[Expr, Expr] = {}
        self._units: dict[Expr, np.ndarray] = {}  # of the sums of layers, laid out along the result

    def rewritten(self, function: Function) -> Function:
        for param in function.params:
            self._store(param)
        for binding in function.bindings:
            value = replace_operands(self._with_rounded_bias(binding.value), self._restored)
            layer = self._layers.get(binding.var)
            if layer is not None and layer.weight is not None and isinstance(value, Call):
                self._emit.layer = layer.var
                value = with_operands(value, [value.args[0], self._quantizer.weight(self._emit, layer)])
                self._units[layer.var] = self._quantizer.unit(layer)
            self._emit.bindings.append(Binding(binding.var, value))
            self._store(binding.var)
        return Function(function.params, self._emit.bindings, function.result, function.attrs)

    def _store(self, var: Var) -> None:
        if var in self._parameters:
            self._restored[var] = _restore(self._emit, var, self._parameters[var])

    def _with_rounded_bias(self, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "add":
            return value
        for place, bias in enumerate(value.args):
            unit = self._units.get(value.args[1 - place])
            if isinstance(bias, Constant) and unit is not None and _broadcasts(bias.data, unit):
                codes = np.clip(np.rint(bias.data / unit), -LARGEST_BIAS, LARGEST_BIAS)
                rounded = Constant((codes * unit).astype(np.float32))
                return with_operands(value, [*value.args[:place], rounded, *value.args[place + 1 :]])
        return value


def _broadcasts(bias: np.ndarray, unit: np.ndarray) -> bool:
    """Return True where each number of a bias has one unit."""
    try:
        return np.broadcast_shapes(bias.shape, unit.shape) == (1,) * max(unit.ndim - bias.ndim, 0) + bias.shape
    except ValueError:
        return False
