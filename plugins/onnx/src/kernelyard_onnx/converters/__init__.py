"""Converters: how each ONNX operator is said in our vocabulary, one file per family."""

from __future__ import annotations

import importlib

FAMILIES = (
    "activation",
    "constant",
    "control",
    "convolution",
    "elementwise",
    "indexing",
    "linear",
    "microsoft",
    "microsoft_attention",
    "microsoft_quantized",
    "normalization",
    "pooling",
    "quantization",
    "random",
    "recurrent",
    "reduction",
    "regions",
    "resize",
    "sequence",
    "shape",
    "signal",
    "slicing",
    "spatial",
    "text",
)


def load() -> None:
    """Enter all converters in the registry."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
