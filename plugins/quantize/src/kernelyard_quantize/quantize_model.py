"""quantize(): a model becomes one of integers, in steps that read like the list in `docs/quantizing.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import kernelyard.ops  # noqa: F401  the vocabulary must be declared before a model is read
from kernelyard.driver.session.import_model import import_model
from kernelyard.driver.session.options import check_options
from kernelyard.errors import OptionError
from kernelyard.ir import Function, IRModule
from kernelyard.ir.verify import verify
from kernelyard.plugins.discovery.manager import get_manager
from kernelyard.plugins.interfaces.quantization_scheme import QuantizationScheme
from kernelyard.target import Target
from kernelyard.transform.pipelines import get_pipeline
from kernelyard_quantize.calibrate import calibrate
from kernelyard_quantize.choose_scheme import AUTO, choose_scheme
from kernelyard_quantize.dynamic import DynamicQuantizer
from kernelyard_quantize.equalize import equalize
from kernelyard_quantize.errors import QuantizationError
from kernelyard_quantize.feeds import Feeds
from kernelyard_quantize.instrumented import MAIN, Compilation
from kernelyard_quantize.layers import Layer, find_layers, find_quantized_values
from kernelyard_quantize.measure import LayerError, layer_errors, model_error
from kernelyard_quantize.observers import ObserverName
from kernelyard_quantize.parameters import parameters_of
from kernelyard_quantize.quantizer import Quantizer
from kernelyard_quantize.result import QuantizationReport, QuantizedModule
from kernelyard_quantize.static import StaticQuantizer
from kernelyard_quantize.weight_only import is_in_blocks, weight_quantizer


def quantize(
    model: object,
    calibration: object = None,
    scheme: str | QuantizationScheme = AUTO,
    *,
    observer: ObserverName = "minmax",
    max_error: float | None = None,
    keep: Sequence[str] = (),
    measure: bool = True,
    target: Target | str = "cpu",
    backends: Sequence[str] | str = "auto",
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> QuantizedModule:
    """Quantize a model: store what its matmuls and convolutions read as integers.

    model: whatever `compile` takes. calibration: feeds as the model will see them (name -> array, or arrays for a model
    of one input), in a list or from a function that returns an iterator; static schemes need it, and without it nothing
    is measured. scheme: a name of `kernelyard.plugins.api.SCHEMES`, one that a backend has, a QuantizationScheme, or
    "auto" for the first that a backend runs. observer: how ranges are found: "minmax", "percentile", "entropy".
    max_error: keep as many of the worst layers in float32 as it takes for the error of the worst result (root mean
    square difference over root mean square). keep: names of layers that stay in float32. measure: False leaves the
    table of errors out. target, backends, options: of the programs that calibrate and measure, as for `compile`.
    Raises: QuantizationError, CalibrationError, OptionError, and what `compile` raises.

    Example:
        >>> import numpy as np
        >>> from kernelyard.ir import FunctionBuilder, IRModule
        >>> b = FunctionBuilder()
        >>> module = IRModule({"main": b.function(b.op("matmul", b.input("x", (2, 4)), np.eye(4, dtype=np.float32)))})
        >>> quantize(module, [np.ones((2, 4), np.float32)], "static").quantization.quantized
        ('matmul',)
    """
    compilation = Compilation(target, backends, options)
    module, function = _simplify(model, options)
    names = function.attrs.get("input_names") or tuple(param.name for param in function.params)
    feeds = None if calibration is None else Feeds(calibration, names)
    chosen = choose_scheme(scheme, feeds is not None, compilation)
    if max_error is not None and (feeds is None or not max_error > 0):
        raise OptionError(
            "max_error needs calibration data to be measured on, and is positive",
            found=repr(max_error),
            expected="0.05",
        )
    layers = _drop_kept(find_layers(function, chosen), keep)
    if chosen.kind != "weights" and feeds is not None:
        module = equalize(module, layers, feeds, compilation)
        function = module.entry_functions()[MAIN]
        layers = _drop_kept(find_layers(function, chosen), keep)
    task = _Task(module, function, layers, chosen, feeds, compilation)
    quantizer = task.quantizer(observer)
    errors = layer_errors(module, layers, quantizer, feeds, compilation) if feeds is not None and measure else []
    if not errors:
        return task.result(quantizer, layers, (), None)
    return _measure_result(task, quantizer, errors, max_error)


@dataclass(frozen=True)
class _Task:
    """Hold what quantizing a model is about."""

    module: IRModule
    function: Function
    layers: Sequence[Layer]
    scheme: QuantizationScheme
    feeds: Feeds | None
    compilation: Compilation

    def quantizer(self, observer: str) -> Quantizer:
        """Return how layers are quantized; this is where calibration runs."""
        scheme = self.scheme
        if scheme.kind == "dynamic":
            return DynamicQuantizer()
        if scheme.kind == "weights":
            return weight_quantizer(self.module, self.layers, scheme.weight_bits, self.feeds, self.compilation)
        assert self.feeds is not None
        values = find_quantized_values(self.function, self.layers, scheme.operators)
        ranges = calibrate(self.module, values, self.feeds, observer, self.compilation)
        parameters = {var: parameters_of(each, scheme.activations, scheme.symmetric) for var, each in ranges.items()}
        return StaticQuantizer(self.function, parameters, scheme.operators)

    def rewritten(self, quantizer: Quantizer, layers: Sequence[Layer]) -> IRModule:
        """Return the module with these layers quantized."""
        module = self.module.with_functions({MAIN: quantizer.rewrite(self.function, layers)})
        verify(module)
        return module

    def result(
        self, quantizer: Quantizer, layers: Sequence[Layer], errors: Sequence[LayerError], error: float | None
    ) -> QuantizedModule:
        """Return the result with these layers quantized."""
        chosen = {layer.name for layer in layers}
        kept = tuple(layer.name for layer in self.layers if layer.name not in chosen)
        rows = tuple(replace(each, quantized=each.name in chosen) for each in errors)
        names = tuple(layer.name for layer in layers)
        sizes = _weight_bytes(self.layers, chosen, self.scheme.weight_bits)
        report = QuantizationReport(self.scheme, names, kept, rows, error, sizes)
        return QuantizedModule(self.rewritten(quantizer, layers), report)


def _measure_result(
    task: _Task, quantizer: Quantizer, errors: Sequence[LayerError], max_error: float | None
) -> QuantizedModule:
    """Return the result with its error; with `max_error`, with as few layers in float32 as bisection finds.

    The worst layers, by the signal to noise of their channels, are kept first.
    """
    assert task.feeds is not None
    feeds, worst_first = task.feeds, sorted(errors, key=lambda each: each.channel_sqnr)
    exact = task.compilation(task.module)
    tried: dict[int, float] = {}

    def select_quantized(kept: int) -> list[Layer]:
        names = {each.name for each in worst_first[:kept]}
        return [layer for layer in task.layers if layer.name not in names]

    def error(kept: int) -> float:
        if kept not in tried:
            exe = task.compilation(task.rewritten(quantizer, select_quantized(kept)))
            tried[kept] = model_error(exact, exe, feeds)
        return tried[kept]

    least, enough = 0, 0
    if max_error is not None and error(0) > max_error:
        enough = len(task.layers)
        while enough - least > 1:
            middle = (least + enough) // 2
            least, enough = (least, middle) if error(middle) <= max_error else (middle, enough)
    return task.result(quantizer, select_quantized(enough), errors, error(enough))


def _simplify(model: object, options: Mapping[str, Mapping[str, Any]] | None) -> tuple[IRModule, Function]:
    """Return a model as passes leave it: batch norms are in the weights, constants are computed."""
    manager = get_manager()
    module = import_model(manager, model, check_options(manager, options))
    for name in ("import", "simplify"):
        module = get_pipeline(name)(module)
    function = module.entry_functions().get(MAIN)
    if function is None:
        raise QuantizationError("the model has no function to quantize", expected=MAIN, found=", ".join(module))
    return module, function


def _drop_kept(layers: Sequence[Layer], keep: Sequence[str]) -> Sequence[Layer]:
    """Return the layers but for those to keep. Raises: QuantizationError for an unknown one, and when none is left."""
    names = [layer.name for layer in layers]
    unknown = [name for name in keep if name not in names]
    if unknown:
        raise QuantizationError(f"there is no layer {unknown[0]!r} to keep", expected=", ".join(names))
    if not layers:
        raise QuantizationError(
            "the model has nothing to quantize", expected="float32 matmuls or convolutions with constant weights"
        )
    return [layer for layer in layers if layer.name not in set(keep)]


def _weight_bytes(layers: Sequence[Layer], quantized: set[str], bits: int) -> tuple[int, int]:
    """Return the bytes of all weights in float32, and as they are stored, scales left out."""
    sizes = [(layer, layer.weight.data.size) for layer in layers if layer.weight is not None]
    stored = sum(
        size * (4 if layer.name not in quantized else 0.5 if bits == 4 and is_in_blocks(layer) else 1)
        for layer, size in sizes
    )
    return sum(4 * size for _, size in sizes), int(stored)
