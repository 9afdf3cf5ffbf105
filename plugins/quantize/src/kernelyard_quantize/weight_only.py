"""Weight-only quantization: 8 bits with a scale for each channel, or 4 with one for each 32 elements of a column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from kernelyard import dims
from kernelyard.ir import IRModule, Var
from kernelyard.transform.quantization.quantize_weights import GROUP
from kernelyard.transform.quantization.quantize_weights import quantize_matrix as rounded_to_nearest
from kernelyard_quantize.batches import batches
from kernelyard_quantize.error_feedback import dequantize_groups, inverse_factor, output_error, with_error_feedback
from kernelyard_quantize.feeds import Feeds
from kernelyard_quantize.instrumented import Compilation, Emitter, returning, runs
from kernelyard_quantize.layers import Layer
from kernelyard_quantize.progress import track_progress
from kernelyard_quantize.quantizer import Quantizer

BUDGET = 1 << 29  # bytes of matrices of second moments that are gathered in one pass over the data


class WeightQuantizer(Quantizer):
    """Stores weights in 8 bits, or matrices of `in_blocks` in 4; all is computed in float32.

    in_blocks: for a layer, codes (groups, 32, N) and scales (groups, 1, N).
    """

    def __init__(self, in_blocks: Mapping[Var, tuple[np.ndarray, np.ndarray]]) -> None:
        self._in_blocks = in_blocks

    def data(self, emit: Emitter, x: Var) -> Var:
        """Return the value as it is."""
        return x

    def weight(self, emit: Emitter, layer: Layer) -> Var:
        """Return what restores a weight."""
        if layer.var not in self._in_blocks:
            return super().weight(emit, layer)
        return _restore(emit, *self._in_blocks[layer.var], rows=_matrix(layer).shape[0])


def _restore(emit: Emitter, codes: np.ndarray, scales: np.ndarray, rows: int) -> Var:
    """Return what restores a matrix; the form that `QuantizeWeights` writes, which kernels read as it is stored."""
    groups, size, columns = codes.shape
    real = emit("multiply", emit("astype", codes, dtype="float32"), scales)
    flat = emit("reshape", real, shape=(groups * size, columns))
    if groups * size == rows:
        return flat
    return emit("strided_slice", flat, axes=(0,), begin=(0,), end=(rows,), strides=(1,))


def weight_quantizer(
    module: IRModule, layers: Sequence[Layer], bits: int, feeds: Feeds | None, compile_: Compilation
) -> WeightQuantizer:
    """Return how weights are stored in 8 or 4 bits.

    4 bits are for matrices of matmuls with two blocks of rows or more; other layers get 8. With `feeds`, 4-bit weights
    are chosen with the error feedback of GPTQ, where that makes less error in the layer's results on this data than
    the nearest integers do.
    """
    matrices = [layer for layer in layers if bits == 4 and is_in_blocks(layer)]
    chosen: dict[Var, tuple[np.ndarray, np.ndarray]] = {}
    factors: dict[Var, np.ndarray] = {}  # of data that several layers read, each once
    for layer, moments in _second_moments(module, matrices, feeds, compile_):
        nearest = rounded_to_nearest(_matrix(layer), 4)
        if moments is None:
            chosen[layer.var] = nearest
            continue
        data = layer.data[0]
        if data not in factors:
            factors = {data: inverse_factor(moments)}
        chosen[layer.var] = _better(_matrix(layer), nearest, moments, factors[data])
    return WeightQuantizer(chosen)


def is_in_blocks(layer: Layer) -> bool:
    """Return True for a layer whose weight 4 bits can hold."""
    return layer.call.op_name == "matmul" and _matrix(layer).shape[0] >= 2 * GROUP


def _better(
    matrix: np.ndarray, nearest: tuple[np.ndarray, np.ndarray], moments: np.ndarray, factor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (groups, 32, N) and scales (groups, 1, N): the nearest ones, or those with error feedback."""
    fed_back = with_error_feedback(matrix, nearest[1], factor)

    def error(each: tuple[np.ndarray, np.ndarray]) -> float:
        return output_error(matrix - dequantize_groups(*each, rows=len(matrix)), moments)

    return min(nearest, fed_back, key=error)


def _matrix(layer: Layer) -> np.ndarray:
    assert layer.weight is not None
    return layer.weight.data


def _second_moments(
    module: IRModule, layers: Sequence[Layer], feeds: Feeds | None, compile_: Compilation
) -> Iterator[tuple[Layer, np.ndarray | None]]:
    """Yield each layer with the sum over all rows x of its data of the products x[i] * x[j]; None without data."""
    if feeds is None:
        yield from ((layer, None) for layer in layers)
        return
    for group in _groups(layers):
        sources = list(dict.fromkeys(layer.data[0] for layer in group))
        exe = compile_(returning(module, lambda emit, _, found=sources: [_moments(emit, var) for var in found]))
        totals = {var: np.zeros((var.tensor_type.shape[-1],) * 2) for var in sources}  # pyright: ignore
        for results in runs(exe, track_progress(feeds, "calibrating")):
            for var, found in zip(sources, results, strict=True):
                totals[var] += found
        yield from ((layer, totals[layer.data[0]]) for layer in group)


def _groups(layers: Iterable[Layer]) -> Iterator[list[Layer]]:
    """Split layers so that their matrices of second moments fit into the budget."""
    return batches(layers, lambda layer: 8 * _matrix(layer).shape[0] ** 2, BUDGET)


def _moments(emit: Emitter, x: Var) -> Var:
    *rows, columns = x.tensor_type.shape
    flat = emit("reshape", x, shape=(dims.product(rows), columns))
    return emit("matmul", emit("permute_dims", flat, axes=(1, 0)), flat)
