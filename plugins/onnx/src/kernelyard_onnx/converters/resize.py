"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelyard.dims import Dim
from kernelyard.dtypes import is_float
from kernelyard.plugins.api import Constant, Expr, scaled_size
from kernelyard_onnx.bounds import at_least
from kernelyard_onnx.converters.interpolation import KERNELS, crop_positions, interpolation_matrix, sampling_matrix
from kernelyard_onnx.node import Node
from kernelyard_onnx.rational import Rational, UndecidedError
from kernelyard_onnx.registry import converter

METHODS = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}
KEEP_RATIO = {"not_larger": min, "not_smaller": max}


@converter("Upsample")
def upsample_by_two_scales(node: Node) -> Expr:
    scales = [1.0, 1.0, *(float(node.require_attr(name)) for name in ("height_scale", "width_scale"))]
    return resize_by_scales(node.like("Upsample", node.inputs, scales=scales))


@converter("Upsample", since=7)
@converter("Resize", since=10)
def resize_by_scales(node: Node) -> Expr:
    """Resize or Upsample of opset 7 to 10: nearest numbers lie below where an axis grows, above where it shrinks."""
    scales = node.attr("scales") or _read_numbers(node, node.input(1), "scales")
    x = node.input(0)
    shape = node.shape(x)
    sizes, factors = _sizes_and_scales(node, shape, scales)
    if factors is not None and node.attr("mode", "nearest") == "nearest":
        shrinks = [factor < 1 for factor in factors]
        smaller = [new if less else size for size, new, less in zip(shape, sizes, shrinks, strict=True)]
        x = _resize(node, x, smaller, [min(factor, 1.0) for factor in factors], "asymmetric", "ceil")
        factors = [max(factor, 1.0) for factor in factors]
    return _resize(node, x, sizes, factors, "asymmetric", "floor")


@converter("Resize", since=11)
def resize(node: Node) -> Expr:
    """Resize; what is interpolated of whole numbers is cut off behind the point, as in onnxruntime."""
    x = node.input(0)
    if is_float(node.dtype(x)) or METHODS.get(node.attr("mode", "nearest")) == "nearest":
        return _resize_node(node, x)
    wide = node.like(node.proto.op_type, [node.cast(x, "float32"), *node.inputs[1:]])
    return node.cast(_resize_node(wide, wide.input(0)), node.dtype(x))


def _resize_node(node: Node, x: Expr) -> Expr:
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_half_pixel_for_nn":
        node.reject(f"its coordinate_transformation_mode is {mode!r}")
    shape = list(node.shape(x))
    axes = node.axes(node.attr("axes", range(len(shape))), len(shape))
    scales, sizes = node.optional(2), node.optional(3)
    inner = [shape[axis] for axis in axes]
    if scales is not None and node.shape(scales) != (0,):
        new, factors = _sizes_and_scales(node, inner, _read_numbers(node, scales, "scales"))
    else:
        new, factors = _fit_sizes(node, inner, node.dims(sizes if sizes is not None else node.input(3), "sizes"))
    full_factors = [1.0] * len(shape) if factors is not None else None
    for position, axis in enumerate(axes):
        shape[axis] = new[position]
        if full_factors is not None and factors is not None:
            full_factors[axis] = factors[position]
    if mode == "tf_crop_and_resize":
        return _crop_and_resize(node, shape, axes)
    if _needs_matrices(node, shape):
        return _resize_by_matrices(node, shape, full_factors, mode)
    return _resize(node, x, shape, full_factors, mode, node.attr("nearest_mode", "round_prefer_floor"))


def _crop_and_resize(node: Node, sizes: Sequence[Dim], axes: Sequence[int]) -> Expr:
    """Return the part of the image that `roi` names, sampled; what lies outside of the image has a value of its own."""
    x = node.input(0)
    method = METHODS.get(node.attr("mode", "nearest")) or node.reject("its mode is unknown")
    roi = node.constant(node.input(1), "roi").reshape(-1)
    if len(roi) != 2 * len(axes):
        node.reject(f"its roi has {len(roi)} numbers for {len(axes)} axes")
    outside = np.zeros((1,) * node.rank(x), bool)
    for number, axis in enumerate(axes):
        have = node.require_fixed(node.shape(x)[axis], f"size of axis {axis}")
        want = node.require_fixed(sizes[axis], f"new size of axis {axis}")
        begin, end = float(roi[number]), float(roi[len(axes) + number])
        if have == want and (begin, end) == (0, 1):
            continue
        node.affordable(have * want, "matrix")
        at = crop_positions(have, want, begin, end)
        matrix = sampling_matrix(at, have, method, float(node.attr("cubic_coeff_a", -0.75)))
        x = node.times_matrix(x, axis, matrix.T)
        spread = [1] * node.rank(x)
        spread[axis] = want
        outside = outside | ((at < 0) | (at > have - 1)).reshape(spread)
    if not outside.any():
        return x
    value = node.full(float(node.attr("extrapolation_value", 0.0)), (), node.dtype(x))
    return node.op("where", Constant(np.ascontiguousarray(outside)), value, x)


def _needs_matrices(node: Node, sizes: Sequence[Dim]) -> bool:
    """Return True where the node shrinks with antialias, or leaves out what lies outside: the op has neither."""
    if METHODS.get(node.attr("mode", "nearest")) not in KERNELS:
        return False
    pairs = zip(node.shape(node.input(0)), sizes, strict=True)
    shrinks = any(not at_least(new, size) for size, new in pairs)
    return bool(node.attr("exclude_outside", 0)) or (shrinks and bool(node.attr("antialias", 0)))


def _resize_by_matrices(node: Node, sizes: Sequence[Dim], scales: Sequence[float] | None, coordinates: str) -> Expr:
    """Return one matrix product per axis that changes; sizes must be fixed."""
    x = node.input(0)
    for axis, (size, new) in enumerate(zip(node.shape(x), sizes, strict=True)):
        if size == new:
            continue
        have = node.require_fixed(size, f"size of axis {axis}")
        want = node.require_fixed(new, f"new size of axis {axis}")
        node.affordable(have * want, "matrix")
        matrix = interpolation_matrix(
            have,
            want,
            want / have if scales is None else scales[axis],
            method=METHODS[node.attr("mode", "nearest")],
            coordinates=coordinates,
            cubic_coeff_a=float(node.attr("cubic_coeff_a", -0.75)),
            antialias=bool(node.attr("antialias", 0)),
            exclude_outside=bool(node.attr("exclude_outside", 0)),
        )
        x = node.times_matrix(x, axis, matrix.T)
    return x


def _read_numbers(node: Node, expr: Expr, what: str) -> list[Rational]:
    value = node.builder.known.get(expr)
    if value is None:
        node.reject_undecided(f"its {what} depend on data", expr)
    try:
        return [Rational.of(item) for item in value.reshape(-1)]
    except UndecidedError:
        return node.reject(f"its {what} are not finite")


def _sizes_and_scales(
    node: Node, shape: Sequence[Dim], scales: Sequence[Rational | float]
) -> tuple[list[Dim], list[float] | None]:
    """Return the sizes of the result, and the scales where they are numbers (None: they follow from the sizes)."""
    if len(scales) != len(shape):
        node.reject(f"it has {len(scales)} scales for {len(shape)} axes")
    exact = [Rational.of(np.float32(scale) if isinstance(scale, float) else scale) for scale in scales]
    sizes = [_scale_size(size, scale) for size, scale in zip(shape, exact, strict=True)]
    pairs = [(scale.numerator, scale.denominator) for scale in exact]
    numbers = [float(np.float32(a / b)) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    return sizes, numbers if len(numbers) == len(pairs) else None


def _scale_size(size: Dim, scale: Rational) -> Dim:
    a, b = scale.numerator, scale.denominator
    if isinstance(a, int) and isinstance(b, int):
        return scaled_size(size, a / b)
    return (Rational(size) * scale).floor().dim()


def _fit_sizes(node: Node, shape: Sequence[Dim], sizes: Sequence[Dim]) -> tuple[list[Dim], list[float] | None]:
    """Return the sizes as requested, or adjusted to keep the aspect ratio."""
    if len(sizes) != len(shape):
        node.reject(f"it has {len(sizes)} sizes for {len(shape)} axes")
    choose = KEEP_RATIO.get(node.attr("keep_aspect_ratio_policy", "stretch"))
    if choose is None:
        return list(sizes), None
    numbers = [
        (new, old) for new, old in zip(sizes, shape, strict=True) if isinstance(new, int) and isinstance(old, int)
    ]
    if len(numbers) != len(shape):
        node.reject("it keeps the aspect ratio, and its sizes are not fixed")
    scale = choose(new / old for new, old in numbers)
    return [int(np.floor(scale * old + 0.5)) for _, old in numbers], [scale] * len(shape)


def _resize(
    node: Node, x: Expr, sizes: Sequence[Dim], scales: Sequence[float] | None, coordinates: str, rounding: str
) -> Expr:
    mode = node.attr("mode", "nearest")
    method = METHODS.get(mode) or node.reject(f"its mode {mode!r} is unknown")
    shape = node.shape(x)
    if tuple(sizes) == shape and (scales is None or all(scale == 1 for scale in scales)):
        return x
    if 0 in shape:  # nothing to interpolate, and its sizes hold nothing, too
        return node.reshape(x, tuple(sizes))
    # Batch and channels are rarely resized; where they are, every axis is treated as a spatial one.
    plain = len(shape) > 2 and tuple(sizes[:2]) == shape[:2] and (scales is None or list(scales[:2]) == [1, 1])
    first = 2 if plain else 0
    image = x if plain else node.reshape(x, (1, 1, *shape))
    result = node.op(
        "image.resize",
        image,
        sizes=tuple(sizes[first:]),
        scales=() if scales is None else tuple(scales[first:]),
        method=method,
        coordinate_transformation_mode=coordinates,
        nearest_mode=rounding,
        cubic_coeff_a=float(node.attr("cubic_coeff_a", -0.75)),
    )
    return result if plain else node.reshape(result, tuple(sizes))
