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
    "normalization",
    "pooling",
    "quantization",
    "recurrent",
    "reduction",
    "resize",
    "sequence",
    "shape",
    "signal",
    "slicing",
    "spatial",
)


def load() -> None:
    """Enter all converters in the registry."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
