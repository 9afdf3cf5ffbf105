"""QuantizationScheme: what of a model is stored as integers, and how; backends say which ones they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True)
class QuantizationScheme:
    """State what a quantizer makes of the products of a model (matmuls and convolutions) with constant weights.

    kind: "static": data is stored with a scale that calibration found; "dynamic": with one that each run computes;
    "weights": data stays float32. activations: the dtype of stored data, "uint8" or "int8". symmetric: its zero point
    is the middle of the dtype's range. weight_bits: 8 (a scale for each channel of the result) or 4 (one for each 32
    elements of a column). per_channel: False for one scale per weight. both_operands: matmuls of two computed operands
    are quantized, too. operators: other operators whose float32 operands are to be stored as integers, for devices
    that compute nothing else.

    Example:
        >>> QuantizationScheme("npu", "static", activations="int8", symmetric=True, operators=("add", "concat")).name
        'npu'
    """

    name: str
    kind: Literal["static", "dynamic", "weights"]
    activations: Literal["uint8", "int8"] = "uint8"
    symmetric: bool = False
    weight_bits: Literal[4, 8] = 8
    per_channel: bool = True
    both_operands: bool = False
    operators: tuple[str, ...] = ()


STATIC = QuantizationScheme("static", "static")
DYNAMIC = QuantizationScheme("dynamic", "dynamic")
INT8_WEIGHTS = QuantizationScheme("int8_weights", "weights")
INT4_WEIGHTS = QuantizationScheme("int4_weights", "weights", weight_bits=4)

SCHEMES: Mapping[str, QuantizationScheme] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            STATIC,
            QuantizationScheme("static_symmetric", "static", activations="int8", symmetric=True),
            DYNAMIC,
            INT8_WEIGHTS,
            INT4_WEIGHTS,
        )
    }
)
