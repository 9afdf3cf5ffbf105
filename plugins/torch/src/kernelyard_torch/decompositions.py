"""Decompositions of operators that have no converter, by torch's own rules where it has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.export.exported_program import default_decompositions
from torch.nn import functional

from kernelyard_torch import converters, registry
from kernelyard_torch import order_statistics as order
from kernelyard_torch.fractional_pooling import fractional_max_pool_2d, fractional_max_pool_3d
from kernelyard_torch.graph_outputs import memory_order
from kernelyard_torch.grid_sampling import grid_sampler, grid_sampler_2d
from kernelyard_torch.special import bessel, error, gamma, modified_bessel
from kernelyard_torch.special.orthogonal import POLYNOMIALS

converters.load()  # which says what has a converter
Table = dict[Any, Callable[..., Any]]
# Not of torch's core set, and not decomposed by default either.
FURTHER = (
    torch.ops.aten._addmm_activation.default,
    torch.ops.aten.bucketize.Scalar,
    torch.ops.aten.bucketize.Tensor,
    torch.ops.aten.dist.default,
    torch.ops.aten.hypot.default,
    torch.ops.aten.ldexp.Tensor,
    torch.ops.aten.linalg_vector_norm.default,
    torch.ops.aten.tril_indices.default,
    torch.ops.aten.triu_indices.default,
)

_SPECIAL = {
    "digamma": gamma.digamma,
    "erfc": error.erfc,
    "erfinv": error.erfinv,
    "i0": modified_bessel.i0,
    "special_bessel_j0": bessel.j0,
    "special_bessel_j1": bessel.j1,
    "special_bessel_y0": bessel.y0,
    "special_bessel_y1": bessel.y1,
    "special_erfcx": error.erfcx,
    "special_i0e": modified_bessel.i0e,
    "special_i1": modified_bessel.i1,
    "special_i1e": modified_bessel.i1e,
    "special_log_ndtr": error.log_ndtr,
    "special_modified_bessel_i0": modified_bessel.i0,
    "special_modified_bessel_i1": modified_bessel.i1,
    "special_modified_bessel_k0": modified_bessel.k0,
    "special_modified_bessel_k1": modified_bessel.k1,
    "special_ndtri": error.ndtri,
    "special_scaled_modified_bessel_k0": modified_bessel.scaled_k0,
    "special_scaled_modified_bessel_k1": modified_bessel.scaled_k1,
    "special_spherical_bessel_j0": bessel.spherical_j0,
}

# Converted where they are plain.
RECURRENT = (
    torch.ops.aten.lstm.input,
    torch.ops.aten.gru.input,
    torch.ops.aten.rnn_tanh.input,
    torch.ops.aten.rnn_relu.input,
)


@cache
def _own() -> Table:
    """Beyond torch's core set: what torch's core has as it is, and we do not."""
    own: Table = {
        torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        torch.ops.aten._trilinear.default: _trilinear,
        torch.ops.aten.angle.default: _angle,
        torch.ops.aten.bincount.default: order.count_values,
        torch.ops.aten.cummax.default: order.running_extremum(torch.gt),
        torch.ops.aten.cummin.default: order.running_extremum(torch.lt),
        torch.ops.aten.diagonal_scatter.default: _diagonal_scatter,
        torch.ops.aten.fft_fftfreq.default: _frequencies,
        torch.ops.aten.fft_rfftfreq.default: _half_of_frequencies,
        torch.ops.aten.fmax.default: _unless_nan(torch.maximum),
        torch.ops.aten.fmin.default: _unless_nan(torch.minimum),
        torch.ops.aten.fractional_max_pool2d.default: fractional_max_pool_2d,
        torch.ops.aten.fractional_max_pool3d.default: fractional_max_pool_3d,
        torch.ops.aten.grid_sampler_2d.default: grid_sampler_2d,
        torch.ops.aten.grid_sampler_3d.default: grid_sampler,
        torch.ops.aten.histc.default: order.histogram,
        torch.ops.aten.index_reduce.default: _index_reduce,
        torch.ops.aten.kthvalue.default: order.kth_value,
        torch.ops.aten.lcm.default: _least_multiple,
        torch.ops.aten.lgamma.default: gamma.log_gamma,
        torch.ops.aten.polygamma.default: gamma.polygamma,
        torch.ops.aten.cholesky.default: _or_nan(lambda x, upper=False: torch.linalg.cholesky_ex(x, upper=upper)),
        torch.ops.aten.linalg_cholesky.default: _or_nan(torch.linalg.cholesky_ex),
        torch.ops.aten.linalg_inv.default: _or_nan(torch.linalg.inv_ex),
        torch.ops.aten.linalg_solve.default: _or_nan(torch.linalg.solve_ex),
        torch.ops.aten.logcumsumexp.default: order.running_log_sum_exp,
        torch.ops.aten.median.default: order.of_all(order.median),
        torch.ops.aten.median.dim: order.median,
        torch.ops.aten.mode.default: order.most_frequent,
        torch.ops.aten.nanmedian.default: order.of_all(order.nan_median),
        torch.ops.aten.nanmedian.dim: order.nan_median,
        torch.ops.aten.searchsorted.Tensor: order.search_sorted,
        torch.ops.aten.repeat_interleave.Tensor: order.repeat_indices,
        torch.ops.aten.unique_consecutive.default: order.consecutive_runs,
        torch.ops.aten.put.default: _put,
        torch.ops.aten.rand_like.default: _rand_like,
        torch.ops.aten.randn_like.default: _randn_like,
        torch.ops.aten.rrelu_with_noise_functional.default: _leaky_relu_of_mean,
    }
    own |= {getattr(torch.ops.aten, name).default: function for name, function in _SPECIAL.items()}
    own |= {getattr(torch.ops.aten, name).n_scalar: function for name, function in POLYNOMIALS.items()}
    own |= {op: _unlike_converted(decomposition_table[op]) for op in RECURRENT}
    core = [op for op in decomposition_table if isinstance(op, torch._ops.OpOverload) and torch.Tag.core in op.tags]
    rest = {op: decomposition_table[op] for op in core if registry.find(op) is None}
    return rest | own | {op: decomposition_table[op] for op in FURTHER}


def _or_nan(run: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return NaN for matrices at which eager mode raises: an error by data would be an effect of the program."""

    def run_all(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        result, info = run(x, *args, **options)
        axes_of_result = 1 if result.dim() < x.dim() else 2  # a solution may be a vector
        return torch.where(info.reshape(info.shape + (1,) * axes_of_result) == 0, result, math.nan)

    return run_all


def _unless_nan(extremum: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return the extremum of two numbers, where one is NaN the other."""

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(a.isnan(), b, torch.where(b.isnan(), a, extremum(a, b)))

    return run


def _unlike_converted(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """Decompose recurrent layers that the converter does not know: with a projection, or with dropout in training."""

    def run(
        x: torch.Tensor,
        states: Any,
        weights: Any,
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        expected = layers * (1 + bidirectional) * (4 if has_biases else 2)
        if len(weights) == expected and not (train and dropout):
            return NotImplemented
        return decomposed(x, states, weights, has_biases, layers, dropout, train, bidirectional, batch_first)

    return run


def _rand_like(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    """Draw random numbers in the order in which the elements lie, for a tensor of which sizes and dtype alone count."""
    dtype, order = dtype or x.dtype, memory_order(x)
    if not order:
        return torch.rand(x.shape, dtype=dtype, device=x.device)
    stored = torch.rand([x.shape[axis] for axis in order], dtype=dtype, device=x.device)
    return stored.permute([order.index(axis) for axis in range(x.dim())])


def _randn_like(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    """Likewise; where the elements lie in another order PyTorch draws them by another algorithm, too."""
    dtype, order = dtype or x.dtype, memory_order(x)
    if not order:
        return torch.randn(x.shape, dtype=dtype, device=x.device)
    return torch.ops.aten.normal_functional(torch.empty_permuted(x.shape, order, dtype=dtype, device=x.device))


def _index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Reduce slices of the source into those of x that an index names."""
    if x.dim() == 0:
        return torch.scatter_reduce(x, 0, index.reshape(()), source.reshape(()), reduce, include_self=include_self)
    shape = [1] * x.dim()
    shape[dim] = index.numel()
    places = index.to(torch.int64).reshape(shape).expand(source.shape)
    return torch.scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def _least_multiple(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the least common multiple, 0 of two zeros."""
    divisor = torch.gcd(a, b)
    return (torch.div(a, torch.where(divisor == 0, 1, divisor), rounding_mode="trunc") * b).abs()


def _put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Write to places counted through all elements."""
    rows = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return rows.reshape(x.shape)


def _diagonal_scatter(
    x: torch.Tensor, source: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """Write to a diagonal, whose places are that of a tensor of all places."""
    places = torch.arange(x.numel()).reshape(x.shape).diagonal(offset, dim1, dim2)
    return _put(x, places, source)


def _leaky_relu_of_mean(
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """Return `rrelu` in evaluation mode, and its noise, which that neither reads nor writes; in training it stays."""
    return NotImplemented if training else (functional.leaky_relu(x, (lower + upper) / 2), noise)


def _trilinear(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    expand_a: list[int],
    expand_b: list[int],
    expand_c: list[int],
    summed: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Sum the product of three tensors over some axes; each is told the axes that it lacks."""
    for axes, which in ((expand_a, 0), (expand_b, 1), (expand_c, 2)):
        for axis in axes:
            a, b, c = (each.unsqueeze(axis) if number == which else each for number, each in enumerate((a, b, c)))
    product = a * b * c
    return product.sum(summed) if summed else product


def _frequencies(size: int, spacing: float = 1.0, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    """Return the frequencies of a Fourier transform: those of its second half are negative."""
    steps = torch.arange(size)
    steps = torch.where(steps < (size + 1) // 2, steps, steps - size)
    return steps.to(dtype or torch.get_default_dtype()) * (1.0 / (size * spacing))


def _half_of_frequencies(
    size: int, spacing: float = 1.0, *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return torch.arange(size // 2 + 1).to(dtype or torch.get_default_dtype()) * (1.0 / (size * spacing))


def _angle(x: torch.Tensor) -> Any:
    """Return the angle of real numbers: pi for negative ones; complex numbers have a converter."""
    if x.is_complex():
        return NotImplemented
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, 0.0))


def _encoder_layer(
    x: torch.Tensor,
    size: int,
    heads: int,
    qkv: torch.Tensor,
    qkv_bias: torch.Tensor,
    out: torch.Tensor,
    out_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    epsilon: float,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
    wide: torch.Tensor,
    wide_bias: torch.Tensor,
    narrow: torch.Tensor,
    narrow_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Decompose `nn.TransformerEncoderLayer`'s inference operator: attention and an MLP, each with norm and sum."""

    def norm(y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(y, (size,), weight, bias, epsilon)

    def attend(y: torch.Tensor) -> torch.Tensor:
        batch, length, _ = y.shape
        parts = functional.linear(y, qkv, qkv_bias).view(batch, length, 3, heads, size // heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        hidden = mask if mask is None or mask_type != 1 else mask.view(batch, 1, 1, length)
        visible = None if hidden is None else hidden.logical_not() if hidden.dtype == torch.bool else hidden
        y = functional.scaled_dot_product_attention(q, k, v, visible)
        return functional.linear(y.transpose(1, 2).reshape(batch, length, size), out, out_bias)

    def feed(y: torch.Tensor) -> torch.Tensor:
        y = functional.linear(y, wide, wide_bias)
        return functional.linear(functional.gelu(y) if use_gelu else functional.relu(y), narrow, narrow_bias)

    if norm_first:
        x = x + attend(norm(x, weight_1, bias_1))
        return x + feed(norm(x, weight_2, bias_2))
    x = norm(x + attend(x), weight_1, bias_1)
    return norm(x + feed(x), weight_2, bias_2)


def decompositions() -> Table:
    """Return the table for `ExportedProgram.run_decompositions`: operators with a converter stay whole."""
    table: Table = {**default_decompositions(), **_own()}
    for op in list(table):
        if registry.find(op) is not None and op not in RECURRENT:
            table.pop(op)
    return table


@cache
def inference_decompositions() -> Table:
    """Return the table for graphs that TorchDynamo captures, where composite operators come apart by themselves."""
    return {op: how for op, how in decompositions().items() if isinstance(op, torch._ops.OpOverload)}
