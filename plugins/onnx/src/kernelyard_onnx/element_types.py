"""Element types that no processor computes in: the program carries their numbers in a wider type.

What a caller gives is widened, which loses nothing, and what the program gives is narrowed again, which loses nothing
either: casts and quantization inside the program make only numbers that the narrow type has.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx

from kernelyard.dtypes import to_numpy
from kernelyard.errors import InputTypeError

P = onnx.TensorProto
# By element type: the type that carries it, and NumPy's own.
NARROW: dict[int, tuple[str, Any]] = {
    P.INT4: ("int8", ml_dtypes.int4),
    P.UINT4: ("uint8", ml_dtypes.uint4),
    P.INT2: ("int8", ml_dtypes.int2),
    P.UINT2: ("uint8", ml_dtypes.uint2),
    P.FLOAT4E2M1: ("float32", ml_dtypes.float4_e2m1fn),
    P.FLOAT8E4M3FNUZ: ("float32", ml_dtypes.float8_e4m3fnuz),
    P.FLOAT8E5M2FNUZ: ("float32", ml_dtypes.float8_e5m2fnuz),
    P.FLOAT8E8M0: ("float32", ml_dtypes.float8_e8m0fnu),
}


def carry(value: Any, data_type: int) -> np.ndarray:
    """Return an array as the program takes it; text as an array of objects.

    Raises: InputTypeError.
    """
    if data_type == P.STRING:
        return np.asarray(value, object)
    array = np.asarray(value)
    if data_type not in NARROW:
        return array
    carrier, own = NARROW[data_type]
    if array.dtype != np.dtype(own):
        raise InputTypeError("an input has the wrong dtype", found=array.dtype, expected=np.dtype(own))
    return array.astype(to_numpy(carrier))


def restore(array: np.ndarray, data_type: int) -> np.ndarray:
    """Return a result of the program in the element type of the model."""
    return array.astype(NARROW[data_type][1]) if data_type in NARROW else array
