"""Measure what quantization costs in accuracy: of each layer by itself, and of the model's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from kernelyard.dtypes import is_float
from kernelyard.ir import Call, Expr, Function, IRModule
from kernelyard.runtime.execute.executable import Executable
from kernelyard_quantize.feeds import Feeds
from kernelyard_quantize.instrumented import Compilation, Emitter, returning, runs
from kernelyard_quantize.layers import Layer
from kernelyard_quantize.progress import track_progress
from kernelyard_quantize.quantizer import Quantizer

MEASURED = 8  # feeds that errors are measured on: each new shape of a feed costs a preparation of both programs
_TINY, _MOST_DECIBELS = 1e-30, 200.0


@dataclass(frozen=True)
class LayerError:
    """Measure what quantization of one layer does to its result, where its operands are those of the float32 model.

    op: its operator. origin: the model's node. sqnr: signal to noise in dB; higher is better. channel_sqnr: the same by
    channel of the result, on average: a few large channels do not hide the noise of all others, which is why layers are
    ranked by it. cosine: of the angle between both results. max_error: the largest difference, in units of the largest
    result. quantized: False where it was kept in float32.
    """

    name: str
    op: str
    origin: str
    sqnr: float
    channel_sqnr: float
    cosine: float
    max_error: float
    quantized: bool = True

    def to_json(self) -> Mapping[str, object]:
        """Return the fields by name."""
        return asdict(self)


class _Sums:
    """Sums over feeds that errors are computed from: by channel, and maxima."""

    def __init__(self) -> None:
        self._signal, self._noise, self._product = (np.zeros(()) for _ in range(3))
        self._largest = np.zeros(2)

    def add(self, sums: Sequence[np.ndarray]) -> None:
        signal, noise, product, *extremes = (np.asarray(each, np.float64) for each in sums)
        self._signal, self._noise, self._product = self._signal + signal, self._noise + noise, self._product + product
        self._largest = np.maximum(self._largest, extremes)

    def error_of(self, layer: Layer) -> LayerError:
        signal, noise, product = (float(each.sum()) for each in (self._signal, self._noise, self._product))
        ours = max(noise + 2 * product - signal, _TINY)  # |y|^2, as |y - x|^2 = |y|^2 - 2 xy + |x|^2
        cosine = product / max(float(np.sqrt(signal * ours)), _TINY) if signal else 1.0
        largest, difference = self._largest
        return LayerError(
            layer.name,
            layer.call.op_name,
            layer.var.origin,
            float(_decibels(np.array(signal), np.array(noise))),
            float(_decibels(self._signal, self._noise).mean()),
            min(cosine, 1.0),
            float(difference / largest if largest else 0.0),
        )


def _decibels(signal: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the ratio in dB, at most 200: what is exact has no noise."""
    return np.minimum(10 * np.log10(np.maximum(signal, _TINY) / np.maximum(noise, _TINY)), _MOST_DECIBELS)


def layer_errors(
    module: IRModule, layers: Sequence[Layer], quantizer: Quantizer, feeds: Feeds, compilation: Compilation
) -> list[LayerError]:
    """Return the error of each layer, quantized by itself, over the first feeds.

    One program computes the model in float32 and beside it each layer on quantized operands; it returns five sums for
    each.
    """

    def sums(emit: Emitter, function: Function) -> Sequence[Expr]:
        return [value for layer in layers for value in _compare(emit, layer, quantizer)]

    if not layers:
        return []
    found = [_Sums() for _ in layers]
    few = track_progress(feeds.first(MEASURED), "measuring layers")
    for results in runs(compilation(returning(module, sums)), few):
        for number, each in enumerate(found):
            each.add(results[number * 5 : number * 5 + 5])
    return [each.error_of(layer) for layer, each in zip(layers, found, strict=True)]


def _compare(emit: Emitter, layer: Layer, quantizer: Quantizer) -> list[Expr]:
    """Return the sums of |x|^2, |y - x|^2 and x * y by channel, and the largest |x| and |y - x|, of results x and y."""
    exact, rank = layer.var, layer.var.tensor_type.rank
    stored = emit.bind(Call(layer.call.op, quantizer.operands(emit, layer), layer.call.attrs))
    difference = emit("subtract", stored, exact)
    channels = rank - 1 if layer.call.op_name == "matmul" else 1
    others = tuple(axis for axis in range(rank) if axis != channels)
    squares = [emit("multiply", *pair) for pair in ((exact, exact), (difference, difference), (exact, stored))]
    extremes = [emit.reduce("max", emit("abs", each)) for each in (exact, difference)]
    return [*(emit("sum", each, axes=others) if others else each for each in squares), *extremes]


def model_error(exact: Executable, quantized: Executable, feeds: Feeds) -> float:
    """Return the error of the worst float result: the root mean square difference over that of the result itself."""
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    for feed in track_progress(feeds.first(MEASURED), "measuring the model"):
        ours = quantized.run(feed)
        for name, tensor in exact.run(feed).items():
            x, y = tensor.numpy(), ours[name].numpy()
            if is_float(x.dtype.name) and x.shape == y.shape:
                signal[name] = signal.get(name, 0.0) + float(np.square(x, dtype=np.float64).sum())
                noise[name] = noise.get(name, 0.0) + float(np.square(y.astype(np.float64) - x).sum())
    return max((float(np.sqrt(noise[name] / max(signal[name], 1e-300))) for name in signal), default=0.0)
