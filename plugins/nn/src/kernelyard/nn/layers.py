"""Modules with parameters of their own, and activations as modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kernelyard.nn import op
from kernelyard.nn.module import Module, ModuleList
from kernelyard.nn.op.network import Sizes
from kernelyard.nn.tensor import Parameter, Tensor


class Identity(Module):
    """The identity layer."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return op.relu(x)


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return op.silu(x)


class GELU(Module):
    """The Gaussian error linear unit; `approximate` takes the form with tanh."""

    def __init__(self, approximate: bool = False) -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return op.gelu(x, self.approximate)


class Linear(Module):
    """x (..., in_features) to (..., out_features). weight: (out_features, in_features); bias: (out_features,).

    out_dtype: of the result, and of the bias; see `op.matmul`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: str = "float32",
        out_dtype: str | None = None,
    ) -> None:
        self.out_dtype = out_dtype
        self.weight = Parameter((out_features, in_features), dtype)
        self.bias = Parameter((out_features,), out_dtype or dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return op.linear(x, self.weight, self.bias, self.out_dtype)


class _Conv(Module):
    """Base of convolutions. weight: (out_channels, in_channels / groups, kernel); bias: (out_channels,)."""

    rank: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: str = "float32",
    ) -> None:
        kernel = (kernel_size,) * self.rank if isinstance(kernel_size, int) else tuple(kernel_size)
        self.weight = Parameter((out_channels, in_channels // groups, *kernel), dtype)
        self.bias = Parameter((out_channels,), dtype) if bias else None
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups


class Conv1D(_Conv):
    """A convolution of (N, C, W)."""

    rank = 1

    def forward(self, x: Tensor) -> Tensor:
        return op.conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv2D(_Conv):
    """A convolution of (N, C, H, W)."""

    rank = 2

    def forward(self, x: Tensor) -> Tensor:
        return op.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv3D(_Conv):
    """A convolution of (N, C, D, H, W)."""

    rank = 3

    def forward(self, x: Tensor) -> Tensor:
        return op.conv3d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ConvTranspose1D(Module):
    """A transposed convolution of (N, C, W). weight: (in_channels, out_channels / groups, kernel)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        output_padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: str = "float32",
    ) -> None:
        self.weight = Parameter((in_channels, out_channels // groups, kernel_size), dtype)
        self.bias = Parameter((out_channels,), dtype) if bias else None
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.dilation, self.groups = dilation, groups

    def forward(self, x: Tensor) -> Tensor:
        settings = self.stride, self.padding, self.output_padding, self.dilation, self.groups
        return op.conv1d_transpose(x, self.weight, self.bias, *settings)


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes; weight and bias have their shape, or are left out."""

    def __init__(
        self, normalized_shape: Sizes, eps: float = 1e-5, elementwise_affine: bool = True, dtype: str = "float32"
    ) -> None:
        sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps = sizes, eps
        self.weight = Parameter(sizes, dtype) if elementwise_affine else None
        self.bias = Parameter(sizes, dtype) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        return op.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Root of the mean square 1 over some axes, times weight (hidden_size,), plus a bias if there is one."""

    def __init__(
        self,
        hidden_size: int,
        axes: int | Sequence[int] = -1,
        eps: float = 1e-5,
        bias: bool = True,
        dtype: str = "float32",
    ) -> None:
        self.axes, self.eps = axes, eps
        self.weight = Parameter((hidden_size,), dtype)
        self.bias = Parameter((hidden_size,), dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = op.rms_norm(x, self.weight, self.axes, self.eps)
        return y if self.bias is None else y + self.bias


class GroupNorm(Module):
    """Mean 0 and variance 1 over each group of the channels of (N, C, ...); weight and bias: (C,)."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, dtype: str = "float32"
    ) -> None:
        self.num_groups, self.eps = num_groups, eps
        self.weight = Parameter((num_channels,), dtype) if affine else None
        self.bias = Parameter((num_channels,), dtype) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return op.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class Embedding(Module):
    """A row of weight (num, dim) for each index, whose dtype is an integer."""

    def __init__(self, num: int, dim: int, dtype: str = "float32") -> None:
        self.weight = Parameter((num, dim), dtype)

    def forward(self, x: Tensor) -> Tensor:
        return op.take(self.weight, x, axis=0)


class Attention(Module):
    """Attention of hidden states (batch, rows, query_dim) to themselves, or to encoder_hidden_states (batch, rows,
    cross_attention_dim), with a linear layer for each of queries, keys and values, and one for the result.

    heads: how many, of size dim_head each. bias: those of the first three layers, out_bias: that of the last.
    norm_num_groups: groups over which the hidden states are normalised before. attention_mask: numbers that are added
    to the scores (batch, heads, rows, rows).
    """

    def __init__(
        self,
        query_dim: int,
        cross_attention_dim: int | None = None,
        heads: int = 8,
        dim_head: int = 64,
        bias: bool = False,
        norm_num_groups: int | None = None,
        out_bias: bool = True,
        scale_qk: bool = True,
        dtype: str = "float32",
    ) -> None:
        inner, other = heads * dim_head, cross_attention_dim or query_dim
        self.heads, self.scale = heads, None if scale_qk else 1.0
        self.group_norm = GroupNorm(norm_num_groups, query_dim, dtype=dtype) if norm_num_groups else None
        self.to_q = Linear(query_dim, inner, bias, dtype)
        self.to_k = Linear(other, inner, bias, dtype)
        self.to_v = Linear(other, inner, bias, dtype)
        self.to_out = ModuleList([Linear(inner, query_dim, out_bias, dtype)])

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        x = hidden_states
        if self.group_norm is not None:
            x = self.group_norm(x.permute_dims(0, 2, 1)).permute_dims(0, 2, 1)
        other = x if encoder_hidden_states is None else encoder_hidden_states
        projected = (self.to_q(x), self.to_k(other), self.to_v(other))
        q, k, v = (each.reshape(*each.shape[:2], self.heads, -1) for each in projected)
        y = op.scaled_dot_product_attention(q, k, v, attention_mask, scale=self.scale)
        return self.to_out(y.reshape(*y.shape[:2], -1))


class Timesteps(Module):
    """Sines and cosines of time steps (N,): (N, num_channels)."""

    def __init__(self, num_channels: int, flip_sin_to_cos: bool = False, downscale_freq_shift: float = 1.0) -> None:
        self.settings = num_channels, flip_sin_to_cos, downscale_freq_shift

    def forward(self, x: Tensor) -> Tensor:
        return op.get_timestep_embedding(x, *self.settings)


class TimestepEmbedding(Module):
    """Two linear layers with an activation between them, over what `Timesteps` gives."""

    def __init__(
        self,
        in_channels: int,
        time_embed_dim: int,
        act_fn: Literal["silu", "gelu"] = "silu",
        out_dim: int | None = None,
        dtype: str = "float32",
    ) -> None:
        self.linear_1 = Linear(in_channels, time_embed_dim, dtype=dtype)
        self.act: Module = {"silu": SiLU, "gelu": GELU}[act_fn]()
        self.linear_2 = Linear(time_embed_dim, out_dim or time_embed_dim, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.act(self.linear_1(x)))
