"""Torch's tensors and element types as NumPy and we say them."""

from __future__ import annotations

import numpy as np
import torch

from kernelyard.dtypes import to_numpy
from kernelyard.runtime.api import Tensor

DTYPES: dict[torch.dtype, str] = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.bool: "bool",
}
# Types that NumPy does not have: their bits are read as integers.
_BITS = {
    torch.bfloat16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
# Types that both have.
_SHARED = frozenset(DTYPES) - frozenset(_BITS)


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a NumPy view of a dense tensor in host memory: no copy.

    Raises: TypeError for tensors elsewhere, sparse ones, and dtypes that we do not have.
    """
    if tensor.dtype in _SHARED and not tensor.requires_grad and not tensor.is_neg():  # as it mostly is
        return tensor.numpy()
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{tensor.dtype} is not a supported element type")
    detached = tensor.detach().resolve_neg()
    bits = _BITS.get(detached.dtype)
    if bits is None:
        return detached.numpy()
    return detached.view(bits).numpy().view(to_numpy(DTYPES[detached.dtype]))


def to_tensor(result: Tensor) -> torch.Tensor:
    """Return a view of a result in the memory that it lies in."""
    array = result.array
    if isinstance(array, np.ndarray) and array.dtype.isbuiltin == 1 and array.flags.writeable:
        return torch.from_numpy(array)  # a tenth of the time
    return torch.from_dlpack(result)
