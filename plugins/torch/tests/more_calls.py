"""Calls of core operators that no sample of PyTorch's makes, by dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

aten: Any = torch.ops.aten
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def more_calls() -> Iterator[Call]:
    """Operators with their arguments, by position and by name; not every dtype is one that PyTorch has them for."""
    torch.manual_seed(0)
    for dtype in DTYPES:
        yield from _of_any(dtype)
    yield aten.randperm.default, (7,), {}
    for dtype in DTYPES[:3]:
        yield from _of_floats(dtype)
        yield from _of_gradients(dtype)
        yield from _of_bags(dtype)


def _of_any(dtype: torch.dtype) -> Iterator[Call]:
    x, number = (4 * torch.randn(3, 5)).to(dtype), True if dtype == torch.bool else 3
    for op in (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor, aten.fmod, aten.remainder):
        yield op.Scalar, (x, number), {}
    for op in (aten.eq, aten.ge, aten.gt, aten.le, aten.lt, aten.ne):
        yield op.Scalar, (x, number), {}
    for op in (aten.add, aten.sub, aten.mul, aten.div):
        yield op.Scalar, (x, number), {}
    for mode in ("floor", "trunc"):
        yield aten.div.Scalar_mode, (x, 0.7 if dtype.is_floating_point else 3), {"rounding_mode": mode}
    yield aten.pow.Scalar, (2, x), {}
    yield aten.pow.Tensor_Scalar, (x, 3), {}
    yield aten.scatter.value, (x, 1, torch.tensor([[0, 2], [4, 1]]), number), {}
    yield aten.embedding.default, (x, torch.tensor([[2, 0], [1, 1]])), {}
    yield aten.native_dropout.default, (x, 0.5, False), {}


def _of_floats(dtype: torch.dtype) -> Iterator[Call]:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype)

    image, volume = draw(2, 3, 6, 7), draw(1, 2, 3, 4, 5)
    yield aten.avg_pool1d.default, (draw(2, 3, 9), [3], [2], [1]), {}
    yield aten.avg_pool1d.default, (draw(2, 3, 9), [2], [2], [0], True, False), {}
    yield aten.adaptive_avg_pool1d.default, (draw(2, 3, 9), [4]), {}
    yield aten.col2im.default, (draw(2, 3 * 4, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]), {}
    yield aten.col2im.default, (draw(1, 2 * 6, 6), [5, 6], [3, 2], [1, 2], [1, 1], [2, 3]), {}
    yield aten.reflection_pad3d.default, (volume, [1, 2, 0, 1, 2, 1]), {}
    yield aten.replication_pad3d.default, (volume, [1, 2, 0, 1, 2, -1]), {}
    for sizes, scales in (([9, 5], None), (None, [2.0, 3.0]), (None, [1.5, 0.7])):
        yield aten.upsample_nearest2d.vec, (image, sizes, scales), {}
        for align_corners in (False, True):
            yield aten.upsample_bilinear2d.vec, (image, sizes, align_corners, scales), {}
    yield aten.var.dim, (image, [1, 2]), {}
    yield aten.var.dim, (image, [3], False, True), {}
    yield aten._native_batch_norm_legit.no_stats, (image, draw(3), draw(3), True, 0.1, 1e-5), {}
    yield aten._native_batch_norm_legit.no_stats, (volume, None, None, True, 0.1, 1e-3), {}
    for axes, normalization, onesided in (([1], 0, True), ([0, 1], 1, False), ([2, 3], 2, True)):
        yield aten._fft_r2c.default, (image, axes, normalization, onesided), {}
    if dtype != torch.bfloat16:
        half = torch.fft.rfft(image)
        yield aten._fft_c2r.default, (half, [3], 2, 7), {}
        yield aten._fft_c2r.default, (half, [1, 3], 1, 6), {}
    yield aten._cdist_forward.default, (draw(4, 3), draw(5, 3), 2.0, None), {}
    yield aten._pdist_forward.default, (draw(4, 3), 1.0), {}
    yield aten.avg_pool3d.default, (volume, [2, 2, 3]), {}


def _of_gradients(dtype: torch.dtype) -> Iterator[Call]:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(dtype)

    image, volume = draw(2, 3, 6, 7), draw(1, 2, 3, 4, 5)
    yield aten._adaptive_avg_pool2d_backward.default, (draw(2, 3, 4, 3), image), {}
    yield aten._adaptive_avg_pool2d_backward.default, (draw(3, 2, 2), image[0]), {}
    for rest in ((True, True, None), (False, False, None), (False, True, 5)):
        yield _mean_pool(image, [3, 2], [2], [1, 1], *rest)
    yield _mean_pool(image, [3, 2], [], [0], False, True, None)
    yield _convolution(draw(2, 4, 9), draw(6, 2, 3), [2], [1], [2], False, [0], 2)
    yield _convolution(image, draw(5, 3, 3, 2), [1, 1], [0, 1], [1, 2], False, [0, 0], 1)
    yield _convolution(image, draw(3, 4, 3, 2), [2, 1], [1, 0], [1, 1], True, [1, 0], 1)
    yield _convolution(volume, draw(4, 1, 1, 3, 3), [1, 1, 2], [0, 1, 1], [1, 1, 1], False, [0, 0, 0], 2)
    yield aten.embedding_dense_backward.default, (draw(4, 3), torch.tensor([1, 0, 1, 4]), 6, -1, False), {}
    mean, scale = draw(2, 1), draw(2, 1).abs() + 0.5
    row = draw(2, 5)
    yield aten.native_layer_norm_backward.default, (row, draw(2, 5), [5], mean, scale, draw(5), draw(5), [True] * 3), {}
    grouped = draw(2, 4, 3)
    mean, scale = draw(2, 2), draw(2, 2).abs() + 0.5
    arguments = (grouped, draw(2, 4, 3), mean, scale, draw(4), 2, 4, 3, 2, [True] * 3)
    yield aten.native_group_norm_backward.default, arguments, {}


def _mean_pool(x: torch.Tensor, *rest: Any) -> Call:
    return aten.avg_pool2d_backward.default, (torch.randn_like(aten.avg_pool2d.default(x, *rest)), x, *rest), {}


def _convolution(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Call:
    strides, padding, dilation, transposed, output_padding, groups = rest
    result = aten.convolution.default(x, weight, None, strides, padding, dilation, transposed, output_padding, groups)
    given = (torch.randn_like(result), x, weight, [result.shape[1]], *rest, [True] * 3)
    return aten.convolution_backward.default, given, {}


def _of_bags(dtype: torch.dtype) -> Iterator[Call]:
    table, indices = torch.randn(6, 3).to(dtype), torch.tensor([1, 2, 4, 5, 4, 3, 2, 0])
    for mode in range(3):
        for padding, include_last in ((-1, False), (4, False), (-1, True)):
            offsets = torch.tensor([0, 3, 3, 8] if include_last else [0, 3, 3, 6])
            arguments = (table, indices, offsets, False, mode, False, None, include_last, padding)
            yield aten._embedding_bag.default, arguments, {}
    weights = torch.rand(8).to(dtype)
    yield aten._embedding_bag.default, (table, indices, torch.tensor([0, 5]), False, 0, False, weights), {}
