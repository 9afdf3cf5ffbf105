"""Equalize channels of data: large ones are divided, and the rows of a weight that read them multiplied.

One scale serves all channels of data, so that few large ones leave the others few steps. Source of the rule: Xiao et
al. 2022, "SmoothQuant" (arXiv:2211.10438); Lin et al. 2023, "AWQ" (arXiv:2306.00978).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernelyard.ir import Binding, Call, Constant, Expr, Function, IRModule, Var, with_operands
from kernelyard_quantize.feeds import Feeds
from kernelyard_quantize.instrumented import MAIN, Compilation, Emitter, returning, runs
from kernelyard_quantize.layers import Layer
from kernelyard_quantize.progress import track_progress

_SHARES = (0.25, 0.5, 0.75)  # of the spread between channels that moves into the weight
_LEAST_GAIN = 2.0  # by which the squared error must fall: the division takes time
_STEPS, _WEIGHT_STEPS = 255.0, 127.0


@dataclass(frozen=True)
class _Channels:
    """Hold what calibration saw of data, by channel (the last axis): least, largest and mean square."""

    low: np.ndarray
    high: np.ndarray
    square: np.ndarray

    @property
    def largest(self) -> np.ndarray:
        return np.maximum(-self.low, self.high)

    def divide(self, by: np.ndarray) -> _Channels:
        return _Channels(self.low / by, self.high / by, self.square / by**2)


def equalize(module: IRModule, layers: Sequence[Layer], feeds: Feeds, compilation: Compilation) -> IRModule:
    """Return a module that computes the same in float32, with equalized data of matmuls where that pays.

    It pays where the error that is to be expected of uniform rounding, of data and of weights, falls to a half.
    """
    readers: dict[Var, list[Layer]] = {}
    for layer in layers:
        if layer.call.op_name == "matmul" and layer.weight is not None:
            readers.setdefault(layer.data[0], []).append(layer)
    if not readers:
        return module
    factors = {
        var: found
        for var, channels in _observe(module, list(readers), feeds, compilation).items()
        if (found := _factors(channels, [_matrix(layer) for layer in readers[var]])) is not None
    }
    function = module[MAIN]
    assert isinstance(function, Function)
    return module.with_functions({MAIN: _divide_channels(function, readers, factors)}) if factors else module


def _observe(module: IRModule, values: list[Var], feeds: Feeds, compilation: Compilation) -> dict[Var, _Channels]:
    def statistics(emit: Emitter, function: Function) -> list[Expr]:
        found: list[Expr] = []
        for var in values:
            axes = tuple(range(var.tensor_type.rank - 1))
            found += [emit(name, var, axes=axes) for name in ("min", "max")]
            found.append(emit("mean", emit("multiply", var, var), axes=axes))
        return found

    every = list(runs(compilation(returning(module, statistics)), track_progress(feeds, "equalizing")))
    return {
        var: _Channels(
            np.min([results[place] for results in every], axis=0).astype(np.float64),
            np.max([results[place + 1] for results in every], axis=0).astype(np.float64),
            np.asarray(np.mean([results[place + 2] for results in every], axis=0, dtype=np.float64)),
        )
        for place, var in zip(range(0, 3 * len(values), 3), values, strict=True)
    }


def _factors(channels: _Channels, matrices: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return what to divide each channel by, or None where that is not worth it."""
    weight = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    used = (channels.largest > 0) & (weight > 0)
    if not used.any() or not np.isfinite(channels.square).all():  # calibration says where numbers overflow
        return None

    def candidate(share: float) -> np.ndarray:
        raw = np.where(used, channels.largest, 1.0) ** share / np.where(used, weight, 1.0) ** (1 - share)
        return np.where(used, raw / np.exp(np.log(raw[used]).mean()), 1.0).astype(np.float32)

    def error(by: np.ndarray) -> float:
        return _expect_error(channels.divide(by), [matrix * by[:, None] for matrix in matrices])

    best = min(map(candidate, _SHARES), key=error)
    return best if error(best) * _LEAST_GAIN <= error(np.ones_like(best)) else None


def _expect_error(channels: _Channels, matrices: Sequence[np.ndarray]) -> float:
    """Return the squared error of results that uniform rounding of data and weights makes, up to a factor."""
    step = (max(channels.high.max(), 0.0) - min(channels.low.min(), 0.0)) / _STEPS
    of_data = step**2 * sum(float(np.square(matrix).sum()) for matrix in matrices)
    weight_steps = [np.abs(matrix).max(axis=0) / _WEIGHT_STEPS for matrix in matrices]
    return of_data + sum(float(np.square(steps).sum()) for steps in weight_steps) * float(channels.square.sum())


def _divide_channels(function: Function, readers: dict[Var, list[Layer]], factors: dict[Var, np.ndarray]) -> Function:
    emit = Emitter()
    layer_of = {layer.var: layer for var in factors for layer in readers[var]}
    divided: dict[Var, Var] = {}
    for binding in function.bindings:
        value, layer = binding.value, layer_of.get(binding.var)
        if layer is not None and isinstance(value, Call):
            (data,) = layer.data
            by = factors[data]
            if data not in divided:
                divided[data] = emit("multiply", data, (1 / by).astype(np.float32))
            value = with_operands(value, [divided[data], Constant(_matrix(layer) * by[:, None])])
        emit.bindings.append(Binding(binding.var, value))
    return Function(function.params, emit.bindings, function.result, function.attrs)


def _matrix(layer: Layer) -> np.ndarray:
    assert layer.weight is not None
    return layer.weight.data
