"""The compile half: regions become ONNX models, which onnxruntime has opened before it is promised that it can."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelyard.plugins.api import (
    Accept,
    Answer,
    Backend,
    Constant,
    Decline,
    FusionPattern,
    IRModule,
    Region,
    Target,
    TensorType,
    Unavailable,
    tensors_of,
)
from kernelyard.runtime.api import Signature, TensorSpec
from kernelyard_onnx_export import to_onnx
from kernelyard_onnxruntime.patterns import fusion_patterns, write
from kernelyard_onnxruntime.runtime import OnnxModel, OnnxruntimeModule


class OnnxruntimeBackend(Backend):
    """Takes what can be written as ONNX and onnxruntime has a kernel for; it is asked once for each kind of call."""

    name = "onnxruntime"
    merge_composites = True  # neighbouring operators become one region, which is one model

    def probe(self) -> Unavailable | None:
        """See `Backend.probe`."""
        found = sys.modules.get("onnxruntime")
        if found is not None and found.__name__ != "onnxruntime":  # which may call the compiler for each question
            return Unavailable(f"{found.__name__} stands in for onnxruntime in this process", "leave this backend out")
        is_here = importlib.util.find_spec("onnxruntime")
        return None if is_here else Unavailable("onnxruntime is not installed", "pip install onnxruntime")

    def facts(self) -> Mapping[str, str]:
        """See `Backend.facts`."""
        return {"library": f"onnxruntime {importlib.metadata.version('onnxruntime')}"}

    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        """See `Backend.patterns`."""
        return fusion_patterns()

    def check_region(self, region: Region) -> Answer:
        """Decline a region whose sizes do not follow from those of its inputs."""
        model = write(region.flattened(), region.symbol)
        return model if isinstance(model, Decline) else Accept()

    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> OnnxruntimeModule:
        """See `Backend.codegen`."""
        constants: dict[str, np.ndarray] = {}
        return OnnxruntimeModule([_model_of(region, constants) for region in regions], constants)


def _model_of(region: Region, constants: dict[str, np.ndarray]) -> OnnxModel:
    """Return a region's model; its large constants are put into `constants` by digest, and are named in it."""
    external: dict[str, np.ndarray] = {}
    model = to_onnx(IRModule({"main": region.flattened()}), external)
    digests: dict[str, str] = {}
    for tensor in model.graph.initializer:
        if tensor.name in external:
            constant = Constant(np.ascontiguousarray(external[tensor.name]))
            digests[tensor.name] = constant.digest
            constants[constant.digest] = constant.data
            tensor.external_data[0].value = constant.digest
    inputs, outputs = (
        [_spec(type_) for type_ in types]
        for types in ([param.tensor_type for param in region.inputs], tensors_of(region.output_type))
    )
    return OnnxModel(
        region.symbol, Signature(tuple(inputs), tuple(outputs)), digests, model.SerializeToString(deterministic=True)
    )


def _spec(type_: TensorType) -> TensorSpec:
    return TensorSpec(type_.shape, type_.dtype)
