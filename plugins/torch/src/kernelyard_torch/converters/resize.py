"""Sampling images anew at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

Kernel = Callable[[np.ndarray], np.ndarray]
_NEAREST: dict[str, Any] = {
    "method": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}


@converter("aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec")
def nearest(node: Node, x: Expr, sizes: Sequence[Dim] | None, scales: Sequence[float] | None) -> Expr:
    return _resize(node, x, scales, **_NEAREST)


@converter("aten.upsample_nearest2d.default")
def nearest_by_size(
    node: Node, x: Expr, sizes: Sequence[Dim], high: float | None = None, wide: float | None = None
) -> Expr:
    return _resize(node, x, _scales(high, wide), **_NEAREST)


@converter("aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_trilinear3d.vec")
def linear(
    node: Node, x: Expr, sizes: Sequence[Dim] | None, align_corners: bool, scales: Sequence[float] | None
) -> Expr:
    return _resize(node, x, scales, method="linear", coordinate_transformation_mode=_mode(align_corners))


@converter("aten.upsample_bilinear2d.default")
def linear_by_size(
    node: Node,
    x: Expr,
    sizes: Sequence[Dim],
    align_corners: bool,
    high: float | None = None,
    wide: float | None = None,
) -> Expr:
    return linear(node, x, sizes, align_corners, _scales(high, wide))


@converter("aten.upsample_bicubic2d.vec")
def cubic(
    node: Node, x: Expr, sizes: Sequence[Dim] | None, align_corners: bool, scales: Sequence[float] | None
) -> Expr:
    return _resize(node, x, scales, method="cubic", coordinate_transformation_mode=_mode(align_corners))


@converter("aten._upsample_bilinear2d_aa.default")
def antialiased_linear(node: Node, x: Expr, sizes: Sequence[Dim], align_corners: bool, *scales: float | None) -> Expr:
    return _resize_antialiased(node, x, sizes, align_corners, scales, _triangle)


@converter("aten._upsample_bicubic2d_aa.default")
def antialiased_cubic(node: Node, x: Expr, sizes: Sequence[Dim], align_corners: bool, *scales: float | None) -> Expr:
    return _resize_antialiased(node, x, sizes, align_corners, scales, _keys)


def _resize_antialiased(
    node: Node, x: Expr, sizes: Sequence[Dim], align_corners: bool, scales: Sequence[float | None], kernel: Kernel
) -> Expr:
    """Resize by a kernel that is as much wider as the image becomes smaller: a matrix for each axis."""
    for axis, (out, scale) in enumerate(zip_longest(sizes, scales), 2):
        size = node.shape(x)[axis]
        if not isinstance(size, int) or not isinstance(out, int):
            node.reject("antialias needs sizes of images that are known")
        step = size / out if scale is None else 1 / scale
        if align_corners:
            step = (size - 1) / (out - 1) if out > 1 else 0.0
        x = node.times_matrix(x, axis, _antialiasing_matrix(size, out, step, kernel).T)
    return x


def _antialiasing_matrix(size: int, out: int, step: float, kernel: Kernel) -> np.ndarray:
    """Return the weights (out, size) of each sample, whose distances are measured in steps where these are above 1."""
    stretch = max(step, 1.0)
    centres = step * (np.arange(out)[:, None] + 0.5)
    distance = np.abs((np.arange(size) + 0.5 - centres) / stretch)
    weights = kernel(distance)
    return weights / weights.sum(1, keepdims=True)


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - distance, 0)


def _keys(distance: np.ndarray, a: float = -0.5) -> np.ndarray:
    """Evaluate the cubic kernel of Keys (1981), with the parameter that PyTorch has for antialiasing."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _scales(high: float | None, wide: float | None) -> list[float] | None:
    return None if high is None or wide is None else [high, wide]


def _mode(align_corners: bool) -> str:
    return "align_corners" if align_corners else "half_pixel"


def _resize(node: Node, x: Expr, scales: Sequence[float] | None, **attrs: Any) -> Expr:
    sizes = node.result.shape[2:]
    return node.op("image.resize", x, sizes=sizes, scales=tuple(map(float, scales or ())), **attrs)
