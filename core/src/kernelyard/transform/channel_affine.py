"""Steps that scale and shift each channel by known numbers: `x * scale + shift`, however they are written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Call, Constant, Expr

STEPS = ("nn.batch_norm", "negative", "add", "subtract", "multiply", "divide")


@dataclass(frozen=True)
class ChannelAffine:
    """`x * scale + shift` along one axis; float64 vectors with one element per channel, None for 1 and for 0."""

    x: Expr
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None


def channel_affine(value: Expr, axis: int, channels: int) -> ChannelAffine | None:
    """`value` read as a step along `axis`, which has `channels` elements; None when it is no such step."""
    if not isinstance(value, Call) or value.op_name not in STEPS or not dtypes.is_float(value.tensor_type.dtype):
        return None
    if value.op_name == "nn.batch_norm":
        return affine_of_batch_norm(value) if value.attrs["axis"] == axis else None
    if value.op_name == "negative":
        return ChannelAffine(value.args[0], scale=np.full(channels, -1.0))
    x, other = value.args
    if isinstance(x, Constant) and value.op_name in ("add", "multiply"):
        x, other = other, x
    if x.type != value.type or not isinstance(other, Constant):
        return None
    vector = channel_vector(other.data, value.tensor_type.rank, axis, channels)
    return None if vector is None else _step(value.op_name, x, vector)


def _step(op: str, x: Expr, vector: np.ndarray) -> ChannelAffine | None:
    if op in ("add", "subtract"):
        return ChannelAffine(x, shift=vector if op == "add" else -vector)
    if op == "multiply":
        return ChannelAffine(x, scale=vector)
    return ChannelAffine(x, scale=1 / vector) if np.all(vector) else None


def affine_of_batch_norm(call: Call) -> ChannelAffine | None:
    """Return a batch norm whose parameters are all known, as a step along its axis."""
    x, *parameters = call.args
    known = [parameter.data.astype(np.float64) for parameter in parameters if isinstance(parameter, Constant)]
    if len(known) != 4:
        return None
    gamma, beta, mean, variance = known
    scale = gamma / np.sqrt(variance + call.attrs["epsilon"])
    return ChannelAffine(x, scale, beta - mean * scale)


def channel_vector(array: np.ndarray, rank: int, axis: int, channels: int) -> np.ndarray | None:
    """Return one float64 number per channel, of an array that broadcasts to a tensor of `rank` so; None for others."""
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(size != 1 for i, size in enumerate(shape) if i != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,))


def channel_constant(vector: np.ndarray, rank: int, axis: int, dtype: str) -> Constant:
    """Return one number per channel as a constant that broadcasts along `axis`; without leading axes where `axis` is
    last.
    """
    shape = (len(vector),) if axis == rank - 1 else tuple(len(vector) if i == axis else 1 for i in range(rank))
    return Constant(vector.astype(dtypes.to_numpy(dtype)).reshape(shape))
