"""Operators of neural networks: products, convolutions, norms, attention, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from kernelyard import dims, dtypes
from kernelyard.dims import Dim
from kernelyard.errors import FrontendError
from kernelyard.nn.op import elementwise, shape
from kernelyard.nn.tensor import Operand, Tensor, emit, to_expr

__all__ = [
    "avg_pool",
    "cached_attention",
    "conv1d",
    "conv1d_transpose",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "get_timestep_embedding",
    "group_norm",
    "interpolate",
    "layer_norm",
    "linear",
    "log_softmax",
    "matmul",
    "max_pool",
    "paged_attention",
    "rms_norm",
    "scaled_dot_product_attention",
    "softmax",
]

Sizes = int | Sequence[int]


# --- products ---------------------------------------------------------------------------------------------------------
def matmul(a: Operand, b: Operand, out_dtype: str | None = None) -> Tensor:
    """Return the matrix product, broadcast over leading axes. out_dtype.

    What it is computed in, where that is wider.
    """
    if out_dtype is None:
        return emit("matmul", a, b)
    operands = [each if isinstance(each, Tensor) else Tensor(to_expr(each)) for each in (a, b)]
    wide = all(dtypes.itemsize(each.dtype) < dtypes.itemsize(out_dtype) for each in operands)
    product = emit("matmul", *(each.astype(out_dtype) if wide else each for each in operands))
    return product if product.dtype == out_dtype else product.astype(out_dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: str | None = None) -> Tensor:
    """Return x (..., in) times weight (out, in) transposed, plus bias (out,). out_dtype: as for `matmul`."""
    product = matmul(x, weight.permute_dims(1, 0), out_dtype)
    return product if bias is None else product + bias


# --- convolutions -----------------------------------------------------------------------------------------------------
def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve x (N, C, W) with weight (O, C / groups, w); padding is the same on both sides."""
    return _conv(1, "", x, weight, bias, stride, padding, dilation, groups=groups)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve x (N, C, H, W) with weight (O, C / groups, h, w); padding is the same on both sides."""
    return _conv(2, "", x, weight, bias, stride, padding, dilation, groups=groups)


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve x (N, C, D, H, W) with weight (O, C / groups, d, h, w); padding is the same on both sides."""
    return _conv(3, "", x, weight, bias, stride, padding, dilation, groups=groups)


def conv1d_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve x (N, C, W), transposed, with weight (C, O / groups, w)."""
    added = _per_axis(output_padding, 1)
    return _conv(1, "_transpose", x, weight, bias, stride, padding, dilation, groups=groups, output_padding=added)


def conv2d_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve x (N, C, H, W), transposed, with weight (C, O / groups, h, w)."""
    added = _per_axis(output_padding, 2)
    return _conv(2, "_transpose", x, weight, bias, stride, padding, dilation, groups=groups, output_padding=added)


def conv3d_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve x (N, C, D, H, W), transposed, with weight (C, O / groups, d, h, w)."""
    added = _per_axis(output_padding, 3)
    return _conv(3, "_transpose", x, weight, bias, stride, padding, dilation, groups=groups, output_padding=added)


def _conv(
    rank: int,
    kind: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    **attrs: int | tuple[int, ...],
) -> Tensor:
    y = emit(
        f"nn.conv{rank}d{kind}",
        x,
        weight,
        strides=_per_axis(stride, rank),
        padding=_per_axis(padding, rank) * 2,
        dilation=_per_axis(dilation, rank),
        **attrs,
    )
    return y if bias is None else y + bias.reshape(1, -1, *[1] * rank)


def _per_axis(value: Sizes, rank: int) -> tuple[int, ...]:
    sizes = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(sizes) != rank:
        raise FrontendError("a size for each spatial axis is needed", found=sizes, expected=f"{rank} numbers, or one")
    return sizes


# --- pooling ----------------------------------------------------------------------------------------------------------
def max_pool(x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> Tensor:
    """Return the largest of each window of x (N, C, and one to three spatial axes).

    By default windows do not overlap.
    """
    rank = x.ndim - 2
    size = _per_axis(kernel_size, rank)
    strides = size if stride is None else _per_axis(stride, rank)
    return emit(f"nn.max_pool{rank}d", x, **_windows(size, strides, padding))


def avg_pool(
    x: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, count_include_pad: bool = True
) -> Tensor:
    """Return the mean of each window of x (N, C, and one to three spatial axes); by default windows do not overlap."""
    rank = x.ndim - 2
    size = _per_axis(kernel_size, rank)
    strides = size if stride is None else _per_axis(stride, rank)
    return emit(f"nn.avg_pool{rank}d", x, **_windows(size, strides, padding), count_include_pad=count_include_pad)


def _windows(size: tuple[int, ...], strides: tuple[int, ...], padding: Sizes) -> dict[str, tuple[int, ...]]:
    rank = len(size)
    return {
        "pool_size": size,
        "strides": strides,
        "padding": _per_axis(padding, rank) * 2,
        "dilation": (1,) * rank,
    }


# --- norms ------------------------------------------------------------------------------------------------------------
def layer_norm(
    x: Tensor,
    normalized_shape: Sizes,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return x with mean 0 and variance 1 over its last axes, of `normalized_shape`; times weight, plus bias."""
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    axes = tuple(range(x.ndim - len(sizes), x.ndim))
    gamma, beta = _scale(weight, sizes, 1, x.dtype), _scale(bias, sizes, 0, x.dtype)
    return emit("nn.layer_norm", x, gamma, beta, axes=axes, epsilon=eps)


def rms_norm(x: Tensor, weight: Tensor, axes: int | Sequence[int] = -1, eps: float = 1e-5) -> Tensor:
    """Return x divided by the root of its mean square over some axes, times weight."""
    given = (axes,) if isinstance(axes, int) else axes
    return emit("nn.rms_norm", x, weight, axes=tuple(axis % x.ndim for axis in given), epsilon=eps)


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return x (N, C, ...) with mean 0 and variance 1 over each of the groups of channels; times weight, plus bias."""
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise FrontendError("the number of channels must be known", found=repr(x))
    gamma, beta = _scale(weight, (channels,), 1, x.dtype), _scale(bias, (channels,), 0, x.dtype)
    return emit("nn.group_norm", x, gamma, beta, num_groups=num_groups, epsilon=eps)


def _scale(given: Tensor | None, sizes: Sequence[int], default: int, dtype: str) -> Tensor:
    return given if given is not None else Tensor(to_expr(np.full(sizes, default, dtypes.to_numpy(dtype))))


# --- probabilities and attention --------------------------------------------------------------------------------------
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Compute softmax along an axis: powers of e that sum to 1."""
    return emit("nn.softmax", x, axis=axis % x.ndim)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return the logarithm of `softmax`."""
    return emit("nn.log_softmax", x, axis=axis % x.ndim)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool | Literal["top_left", "bottom_right"] = False,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(query key^T * scale + mask) value, for tensors (batch, sequence, heads, size).

    attn_mask: numbers that are added to the scores, broadcast to (batch, heads, queries, keys). scale: 1 / sqrt(size)
    unless it is given. is_causal: a query sees no later key; queries and keys begin together (True, "top_left") or end
    together ("bottom_right"), as with a cache. Several heads of queries may share one of keys.
    """
    causal = is_causal if isinstance(is_causal, str) else "top_left" if is_causal else "none"
    attrs = {"scale": scale, "causal": causal}
    if attn_mask is None:
        return emit("nn.attention", query, key, value, **attrs)
    return emit("nn.attention_bias", query, key, value, attn_mask, **attrs)


def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cached_key: Tensor,
    cached_value: Tensor,
    lengths: Tensor,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Compute causal attention (batch, sequence, heads, size) to the rows of a cache, then to new ones, without copies.

    cached_key, cached_value: (batch, heads, rows, size), of any float dtype.
    lengths: how many rows of the cache count for each sequence (batch,). window: how many positions a query sees, its
    own included. softcap: scores are softcap * tanh(score / softcap).
    """
    attrs = {"scale": scale, "window": window, "softcap": softcap}
    return emit("nn.attention_cached", query, key, value, cached_key, cached_value, lengths, **attrs)


def paged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    tables: Tensor,
    lengths: Tensor,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attend to a cache in pages that sequences may share; see `cached_attention`.

    key_pages, value_pages: (heads, pages, rows, size), of any float dtype. tables: the pages of each sequence in turn
    (batch, columns); those that follow each other are read as one. key_scales, value_scales: of rows (heads, pages,
    rows), where pages are int8.
    """
    attrs = {"scale": scale, "window": window, "softcap": softcap}
    scales = [part for part in (key_scales, value_scales) if part is not None]
    return emit("nn.attention_paged", query, key, value, key_pages, value_pages, tables, lengths, *scales, **attrs)


def get_timestep_embedding(
    x: Tensor,
    embedding_dim: int,
    flip_sin_to_cos: bool = False,
    downscale_freq_shift: float = 1.0,
    scale: float = 1.0,
    max_period: float = 10000.0,
) -> Tensor:
    """Compute sines and cosines of x (N,) at decreasing frequencies: (N, embedding_dim).

    Source: Ho, Jain, Abbeel, "Denoising Diffusion Probabilistic Models", 2020 (appendix B).
    """
    half = embedding_dim // 2
    exponent = -math.log(max_period) * np.arange(half, dtype=np.float64) / (half - downscale_freq_shift)
    frequencies = (scale * np.exp(exponent)).astype(dtypes.to_numpy(x.dtype))
    angles = shape.unsqueeze(x, 1) * frequencies
    sine, cosine = elementwise.sin(angles), elementwise.cos(angles)
    embedding = shape.concat([cosine, sine] if flip_sin_to_cos else [sine, cosine], 1)
    return shape.pad(embedding, [(0, 0), (0, 1)]) if embedding_dim % 2 else embedding


# --- resizing ---------------------------------------------------------------------------------------------------------
# What the operator calls the modes.
_MODES = {"nearest": "nearest", "bilinear": "linear", "linear": "linear", "bicubic": "cubic"}


def interpolate(
    x: Tensor,
    size: Dim | Sequence[Dim] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """Return x (N, C, spatial axes) in other sizes, or scaled. mode: nearest, linear (bilinear) or bicubic.

    Raises: FrontendError for another mode, and unless one of `size` and `scale_factor` is given.
    """
    if mode not in _MODES or (size is None) == (scale_factor is None):
        found = f"mode {mode!r}, size {size}, scale_factor {scale_factor}"
        raise FrontendError(
            "invalid arguments of interpolate", found=found, expected=f"{', '.join(_MODES)}; a size or a factor"
        )
    spatial = x.shape[2:]
    if scale_factor is not None:
        factors = scale_factor if isinstance(scale_factor, Sequence) else (scale_factor,) * len(spatial)
        sizes = tuple(_scale_size(dim, factor) for dim, factor in zip(spatial, factors, strict=True))
    else:
        sizes = tuple(size) if isinstance(size, Sequence) else (size,) * len(spatial)
    places = "align_corners" if align_corners else "asymmetric" if mode == "nearest" else "half_pixel"
    return emit(
        "image.resize",
        x,
        sizes=sizes,
        method=_MODES[mode],
        coordinate_transformation_mode=places,
        nearest_mode="floor",
    )


def _scale_size(size: Dim, factor: float) -> Dim:
    if float(factor).is_integer():
        return size * int(factor)
    numerator, denominator = float(factor).as_integer_ratio()
    return dims.floordiv(size * numerator, denominator)
