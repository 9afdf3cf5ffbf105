"""QuantizedModule: a quantized model, which compiles as any module does and is saved as ONNX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelyard.ir import IRModule
from kernelyard.plugins.interfaces.quantization_scheme import QuantizationScheme
from kernelyard.runtime.text_table import align_rows
from kernelyard_quantize.measure import LayerError


@dataclass(frozen=True)
class QuantizationReport:
    """Report what was quantized, and what it costs.

    layers: the error of each layer by itself, in the order of the model; empty where nothing was measured. error: of
    the model's worst result, see `model_error`; None where nothing was measured. quantized, kept: layers stored as
    integers, and layers in float32. weight_bytes: of the weights of layers, as they were and as they are stored.
    """

    scheme: QuantizationScheme
    quantized: tuple[str, ...]
    kept: tuple[str, ...]
    layers: Sequence[LayerError]
    error: float | None
    weight_bytes: tuple[int, int]

    def __str__(self) -> str:
        before, after = (f"{size / 1e6:.2f} MB" for size in self.weight_bytes)
        error = "" if self.error is None else f"; error of the worst result {self.error:.2e}"
        head = f"{self.scheme.name}: {len(self.quantized)} layers quantized, {len(self.kept)} in float32"
        lines = [f"{head}; weights {before} -> {after}{error}"]
        if self.layers:
            rows = [
                (each.name, each.op, *_format_errors(each), "integers" if each.quantized else "float32")
                for each in sorted(self.layers, key=lambda each: each.channel_sqnr)
            ]
            lines += align_rows([("layer", "op", "SQNR", "by channel", "cosine", "max error", "stored as"), *rows])
        return "\n".join(lines)

    def to_json(self) -> Mapping[str, object]:
        """Return the report for machines."""
        return {
            "scheme": self.scheme.name,
            "quantized": list(self.quantized),
            "kept": list(self.kept),
            "error": self.error,
            "weight_bytes": list(self.weight_bytes),
            "layers": [each.to_json() for each in self.layers],
        }


def _format_errors(layer: LayerError) -> tuple[str, ...]:
    decibels = (f"{each:.1f} dB" for each in (layer.sqnr, layer.channel_sqnr))
    return (*decibels, f"{layer.cosine:.5f}", f"{layer.max_error:.2e}")


class QuantizedModule(IRModule):
    """A quantized model: `kernelyard.compile` takes it, `save` writes it as an ONNX file.

    quantization: what was done, and the errors.
    """

    def __init__(self, module: IRModule, report: QuantizationReport) -> None:
        super().__init__(module.functions, module.attrs)
        self.quantization = report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ONNX model with QuantizeLinear and DequantizeLinear, which other engines run too.

        Raises: ExportError for operators that the exporter cannot write.
        """
        from kernelyard_onnx_export import to_onnx

        Path(path).write_bytes(to_onnx(self).SerializeToString())
