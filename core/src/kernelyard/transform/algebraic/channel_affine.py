"""The algebra of channels: steps that scale and shift each channel by known numbers, however they are written, and
linear operators whose constant weights can take such scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelyard import dtypes
from kernelyard.ir import Call, Constant, Expr

CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
TRANSPOSED = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
STEPS = ("nn.batch_norm", "negative", "add", "subtract", "multiply", "divide")


@dataclass(frozen=True)
class ChannelAffine:
    """`x * scale + shift` along one axis; float64 vectors with one element per channel, None for 1 and for 0."""

    x: Expr
    scale: np.ndarray | None = None
    shift: np.ndarray | None = None


def channel_affine(value: Expr, axis: int, channels: int) -> ChannelAffine | None:
    """Match `value` as an affine step along `axis`, which has `channels` elements; None if it is none."""
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


@dataclass(frozen=True)
class Linear:
    """A call of a linear operator with constant weights; `axis` is the channel's in its result, `channels` its size.

    Weights: matmul (..., I, O); convolutions (O, I / groups, ...); transposed ones (I, O / groups, ...).
    """

    call: Call
    weight: np.ndarray
    axis: int
    channels: int

    @property
    def input_axis(self) -> int:
        """The channel's axis in the operand."""
        return self.call.args[0].tensor_type.rank - 1 if self.call.op_name == "matmul" else 1

    @property
    def input_channels(self) -> int:
        """The number of channels of the operand."""
        if self.call.op_name == "matmul":
            return self.weight.shape[-2]
        return self.weight.shape[1] * self.call.attrs["groups"] if self._by_output else self.weight.shape[0]

    def scaling_outputs(self, scale: np.ndarray) -> Call | None:
        """Return the call whose result is this one's times `scale`, per channel.

        None where the weights would not be finite.
        """
        if self.call.op_name == "matmul":
            return self._with(scale)
        return self._with(
            self._spread_over_first_axis(scale) if self._by_output else self._spread_over_both_axes(scale)
        )

    def scaling_inputs(self, scale: np.ndarray) -> Call | None:
        """Return the call that computes of x what this one computes of `x * scale`, per channel of x.

        None where the weights would not be finite.
        """
        if self.call.op_name == "matmul":
            return self._with(scale[:, None])
        return self._with(
            self._spread_over_both_axes(scale) if self._by_output else self._spread_over_first_axis(scale)
        )

    @property
    def _by_output(self) -> bool:
        return self.call.op_name in CONVOLUTIONS

    def _spread_over_first_axis(self, scale: np.ndarray) -> np.ndarray:
        return scale.reshape(-1, *[1] * (self.weight.ndim - 1))

    def _spread_over_both_axes(self, scale: np.ndarray) -> np.ndarray:
        """Spread the scale over both leading axes: channels of the second belong to the group of the first."""
        groups, first = self.call.attrs["groups"], self.weight.shape[0]
        return np.repeat(scale.reshape(groups, -1), first // groups, axis=0).reshape(
            first, -1, *[1] * (self.weight.ndim - 2)
        )

    def _with(self, factor: np.ndarray) -> Call | None:
        with np.errstate(over="ignore", invalid="ignore"):
            weight = (self.weight.astype(np.float64) * factor).astype(self.weight.dtype)
        if not np.all(np.isfinite(weight.astype(np.float64))):
            return None
        return Call(self.call.op, [self.call.args[0], Constant(weight)], self.call.attrs, self.call.type)


def as_linear(value: Expr) -> Linear | None:
    """Match `value` as a linear operator of constant floating-point weights; None for all else."""
    if not isinstance(value, Call) or value.op_name not in ("matmul", *CONVOLUTIONS, *TRANSPOSED):
        return None
    weight = value.args[1]
    if not isinstance(weight, Constant) or not dtypes.is_float(value.tensor_type.dtype):
        return None
    if value.op_name == "matmul" and weight.data.ndim < 2:
        return None
    axis = value.tensor_type.rank - 1 if value.op_name == "matmul" else 1
    channels = value.tensor_type.shape[axis]
    return Linear(value, weight.data, axis, channels) if isinstance(channels, int) else None
