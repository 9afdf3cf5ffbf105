"""Sampling images anew at other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_torch.node import Node
from kernelyard_torch.registry import converter

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


def _scales(high: float | None, wide: float | None) -> list[float] | None:
    return None if high is None or wide is None else [high, wide]


def _mode(align_corners: bool) -> str:
    return "align_corners" if align_corners else "half_pixel"


def _resize(node: Node, x: Expr, scales: Sequence[float] | None, **attrs: Any) -> Expr:
    sizes = node.result.shape[2:]
    return node.op("image.resize", x, sizes=sizes, scales=tuple(map(float, scales or ())), **attrs)
