"""Write modules as ONNX models: `to_onnx`. `SMALL`: elements of constants that are always in the model."""

from kernelyard_onnx_export.exporter import ExportError as ExportError
from kernelyard_onnx_export.exporter import to_onnx as to_onnx
from kernelyard_onnx_export.graph_writer import SMALL as SMALL
