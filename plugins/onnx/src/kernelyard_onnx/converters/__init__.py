"""Converters: how each ONNX operator is said in our vocabulary, one file per family.

A family is imported when a model has an operator that those before it do not have.
"""

from __future__ import annotations

from kernelyard.plugins.api import RegistryModules

FAMILIES = RegistryModules(
    __name__,
    (
        "elementwise",
        "activation",
        "convolution",
        "linear",
        "shape",
        "slicing",
        "indexing",
        "reduction",
        "constant",
        "normalization",
        "pooling",
        "quantization",
        "resize",
        "recurrent",
        "control",
        "random",
        "vision",
        "spatial",
        "signal",
        "sequence",
        "text",
        "microsoft",
        "microsoft_elementwise",
        "microsoft_rotary",
        "microsoft_attention",
        "microsoft_decoding",
        "microsoft_alignment",
        "microsoft_packed",
        "microsoft_positions",
        "microsoft_linear_attention",
        "microsoft_quantized",
        "microsoft_experts",
        "microsoft_recurrent",
        "trees",
        "classical",
        "features",
        "support_vectors",
        "training",
        "images",
        "legacy",
    ),
)
