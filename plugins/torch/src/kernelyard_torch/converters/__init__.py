"""Converters: how each ATen operator is said in our vocabulary, one file per family."""

from __future__ import annotations

import importlib

FAMILIES = (
    "attention",
    "complex",
    "complex_functions",
    "control_flow",
    "convolution",
    "creation",
    "divisors",
    "elementwise",
    "experts",
    "fourier",
    "gradients",
    "indexing",
    "linear",
    "linear_algebra",
    "normalization",
    "pooling",
    "quantization",
    "random",
    "recurrent",
    "reduction",
    "resize",
    "scatter",
    "shape",
    "slicing",
    "unary",
)


def load() -> None:
    """Enter all converters in the registry."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
