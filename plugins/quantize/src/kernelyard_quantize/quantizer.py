"""Quantizer: how the layers of a function become products of stored integers; one class for each kind of scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard.ir import Binding, Expr, Function, Var, with_operands
from kernelyard_quantize.instrumented import Emitter
from kernelyard_quantize.layers import Layer
from kernelyard_quantize.parameters import quantize_weight


class Quantizer(ABC):
    """Says what a layer reads in place of its float32 operands."""

    @abstractmethod
    def data(self, emit: Emitter, x: Var) -> Var:
        """Return what a layer reads of a computed operand."""

    def weight(self, emit: Emitter, layer: Layer) -> Var:
        """Return what a layer reads of its weight: int8, with a scale for each channel or one."""
        return StoredWeight.of(layer).emit_dequantize(emit)

    def operands(self, emit: Emitter, layer: Layer) -> Sequence[Expr]:
        """Return all operands of a layer."""
        return [self.data(emit, x) for x in layer.data] + ([self.weight(emit, layer)] if layer.weight else [])

    def rewrite(self, function: Function, layers: Sequence[Layer]) -> Function:
        """Return the function with these layers quantized. What several of them read is stored once."""
        by_var = {layer.var: layer for layer in layers}
        emit = Emitter()
        read: dict[Var, Var] = {}
        for binding in function.bindings:
            layer, value = by_var.get(binding.var), binding.value
            if layer is not None:
                emit.layer = layer.var
                for x in layer.data:
                    read[x] = read.get(x) or self.data(emit, x)
                weights = [self.weight(emit, layer)] if layer.weight is not None else []
                value = with_operands(value, [*(read[x] for x in layer.data), *weights])
            emit.bindings.append(Binding(binding.var, value))
        return Function(function.params, emit.bindings, function.result, function.attrs)


@dataclass(frozen=True)
class StoredWeight:
    """A weight as int8 and its scales: a vector along `axis`, or a number."""

    codes: np.ndarray
    scales: np.ndarray
    axis: int | None

    @classmethod
    def of(cls, layer: Layer, least: np.ndarray | float = 0.0) -> StoredWeight:
        """Return the weight of a layer, rounded; no scale is smaller than `least`."""
        assert layer.weight is not None
        return cls(*quantize_weight(layer.weight.data, layer.axis, least), layer.axis)

    def emit_dequantize(self, emit: Emitter) -> Var:
        """Return what restores the weight."""
        return emit("dequantize", self.codes, self.scales, np.int8(0), axis=self.axis)
