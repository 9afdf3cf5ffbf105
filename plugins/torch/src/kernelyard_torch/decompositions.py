"""Decompositions of operators that have no converter, by torch's own rules where it has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.export.exported_program import default_decompositions
from torch.nn import functional

from kernelyard_torch import converters, registry

converters.load()  # which says what has a converter
Table = dict[Any, Callable[..., Any]]
# Not of torch's core set, and not decomposed by default either.
FURTHER = (
    torch.ops.aten.bucketize.Tensor,
    torch.ops.aten.copysign.Tensor,
    torch.ops.aten.dist.default,
    torch.ops.aten.hypot.default,
    torch.ops.aten.linalg_vector_norm.default,
)

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
        torch.ops.aten.kthvalue.default: _kth_value,
        torch.ops.aten.searchsorted.Tensor: _search_sorted,
        torch.ops.aten.rand_like.default: _like(torch.rand),
        torch.ops.aten.randn_like.default: _like(torch.randn),
    }
    own |= {op: _unlike_converted(decomposition_table[op]) for op in RECURRENT}
    core = [op for op in decomposition_table if isinstance(op, torch._ops.OpOverload) and torch.Tag.core in op.tags]
    rest = {op: decomposition_table[op] for op in core if registry.find(op) is None}
    return rest | own | {op: decomposition_table[op] for op in FURTHER}


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


def _like(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Random numbers for a tensor, of which sizes and dtype alone count."""

    def drawn(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
        return draw(x.shape, dtype=dtype or x.dtype, device=x.device)

    return drawn


def _kth_value(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    """The last of the k smallest along an axis, and where it is."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    last = [each.narrow(dim, k - 1, 1) for each in torch.topk(x, k, dim, largest=False)]
    return tuple(last if keepdim else [each.squeeze(dim) for each in last])


_MOST_STEPS = 32  # of a search in a sequence of unknown length


def _search_sorted(
    sequence: torch.Tensor,
    values: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """Binary search of all values at once: a gather for each step."""
    sequence = sequence if sorter is None else sequence.gather(-1, sorter)
    length = sequence.shape[-1]
    low = torch.zeros_like(values, dtype=torch.int64)
    high = low + length
    for _ in range(length.bit_length() if isinstance(length, int) else _MOST_STEPS):
        middle = (low + high) // 2
        place = middle.clamp(max=length - 1)
        found = sequence[place] if sequence.dim() == 1 else sequence.gather(-1, place)
        is_behind = found > values if right or side == "right" else found >= values
        is_open = low < high
        low = torch.where(is_open & ~is_behind, middle + 1, low)
        high = torch.where(is_open & is_behind, middle, high)
    return low.to(torch.int32) if out_int32 else low


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
