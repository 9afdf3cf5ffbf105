"""Element types as the Open Inference Protocol names them."""

from __future__ import annotations

from functools import cache

import numpy as np

from kernelyard import dtypes

DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    # The protocol has no names for these; they are sent as the bytes that they are.
    "float8_e4m3fn": "FP8_E4M3FN",
    "float8_e5m2": "FP8_E5M2",
}


@cache
def datatype_of(dtype: np.dtype) -> str:
    """Return the protocol's name of a NumPy dtype; kept, as NumPy takes long to make up the name of one."""
    return DATATYPES[dtypes.from_numpy(dtype)]
