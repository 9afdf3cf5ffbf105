"""Calls of core operators that no sample of PyTorch's makes, by dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

aten: Any = torch.ops.aten
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def more_calls() -> Iterator[Call]:
    """Operators with their arguments, by position and by name."""
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        yield from _of_floats(dtype)
    for operand in (torch.tensor([5, 6, -7]), torch.tensor([True, False, True])):
        number = 3 if operand.dtype == torch.int64 else True
        for op in (aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor):
            yield op.Scalar, (operand, number), {}


def _of_floats(dtype: torch.dtype) -> Iterator[Call]:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype)

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
    for mode in ("floor", "trunc"):
        yield aten.div.Scalar_mode, (image, 0.7), {"rounding_mode": mode}
    yield aten.var.dim, (image, [1, 2]), {}
    yield aten.var.dim, (image, [3], False, True), {}
    yield aten._native_batch_norm_legit.no_stats, (image, draw(3), draw(3), True, 0.1, 1e-5), {}
    yield aten._native_batch_norm_legit.no_stats, (volume, None, None, True, 0.1, 1e-3), {}
    yield aten.native_dropout.default, (image, 0.5, False), {}
    yield aten.embedding_dense_backward.default, (draw(4, 3), torch.tensor([1, 0, 1, 4]), 6, -1, False), {}
    mean, scale = draw(2, 1), draw(2, 1).abs() + 0.5
    row = draw(2, 5)
    yield aten.native_layer_norm_backward.default, (row, draw(2, 5), [5], mean, scale, draw(5), draw(5), [True] * 3), {}
    grouped = draw(2, 4, 3)
    mean, scale = draw(2, 2), draw(2, 2).abs() + 0.5
    arguments = (grouped, draw(2, 4, 3), mean, scale, draw(4), 2, 4, 3, 2, [True] * 3)
    yield aten.native_group_norm_backward.default, arguments, {}
