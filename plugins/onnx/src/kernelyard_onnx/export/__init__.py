"""Write modules as ONNX models: `export`."""

from kernelyard_onnx.export.exporter import ExportError as ExportError
from kernelyard_onnx.export.exporter import export as export
