"""Resizing of images and other spatial data.

Coordinate transformations and rounding follow the definitions of ONNX's Resize operator
(https://onnx.ai/onnx/operators/onnx__Resize.html); the cubic kernel is that of Keys, "Cubic Convolution Interpolation
for Digital Image Processing" (1981).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.dtypes import FLOATS
from kernelyard.ir.op import Attribute, Attributes, Sample
from kernelyard.ir.types import TensorType, Type, tensors_of
from kernelyard.ops.declaration import declare
from kernelyard.ops.numeric import in_float64
from kernelyard.ops.samples import draw_numbers, floats
from kernelyard.ops.type_rules import ANY, require, require_dtype, require_length

TRANSFORMATIONS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


def scaled_size(size: Dim, scale: float) -> Dim:
    """Return the size that ONNX and OpenVINO give an axis whose scale is stated: floor(size * scale) in float32.

    Where the size is symbolic, the scale is the fraction of the least denominator that is rounded to it, so that
    10 times 0.7 is 7 there too.
    """
    if isinstance(size, int):
        return int(np.float32(size) * np.float32(scale))
    exact, limit = Fraction(float(np.float32(scale))), 1
    while np.float32(float(exact.limit_denominator(limit))) != np.float32(scale):
        limit *= 2
    simple = exact.limit_denominator(limit)
    return dims.floordiv(size * simple.numerator, simple.denominator)


def _resize_type(types: Sequence[TensorType], attrs: Attributes) -> Type:
    x, sizes, scales = types[0], attrs["sizes"], attrs["scales"]
    require_dtype(x, ANY if attrs["method"] == "nearest" else FLOATS)
    require(x.rank >= 3, "the data needs spatial axes (N, C, spatial...)", found=repr(x))
    require_length(sizes, x.rank - 2, "sizes")
    require(
        not scales or len(scales) == len(sizes),
        "scales has the wrong length",
        found=scales,
        expected=f"{len(sizes)} entries",
    )
    require(all(scale > 0 for scale in scales), "a scale is not positive", found=scales)
    require(all(not isinstance(size, int) or size >= 1 for size in sizes), "a size is not positive", found=sizes)
    return TensorType(x.shape[:2] + tuple(sizes), x.dtype)


def _resize_flops(types: Sequence[TensorType], result: Type, attrs: Attributes) -> Dim:
    per_axis = 0 if attrs["method"] == "nearest" else 2 * TAPS[attrs["method"]]
    return tensors_of(result)[0].numel * per_axis * len(attrs["sizes"])


def source_coordinates(size: int, out: int, scale: float | None, transformation: str) -> np.ndarray:
    """Return the source coordinate (float64) of each of `out` positions in an input axis of `size`."""
    position = np.arange(out, dtype=np.float64)
    # Without a stated scale the ratio is exact: multiply first, divide once.
    numerator, denominator = (size, out) if scale is None else (1.0, scale)
    if transformation == "align_corners":
        return position * (size - 1) / (out - 1) if out > 1 else np.zeros(1)
    if transformation == "asymmetric":
        return position * numerator / denominator
    centred = (position + 0.5) * numerator / denominator - 0.5
    if transformation == "pytorch_half_pixel":
        return centred if out > 1 else np.zeros(1)
    if transformation == "half_pixel_symmetric" and scale is not None:
        # The output's centre is laid on the input's; they differ when size * scale was rounded.
        return centred + size / 2 * (1 - out / (scale * size))
    return centred


def _cubic_weights(offset: np.ndarray, a: float) -> np.ndarray:
    distance = np.abs(offset[:, np.newaxis] - np.arange(-1, 3))
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _axis_taps(
    coordinates: np.ndarray, size: int, method: str, nearest_mode: str, a: float
) -> tuple[np.ndarray, np.ndarray]:
    """Input positions (out, taps) and their weights (out, taps); positions beyond an edge repeat the edge."""
    if method == "nearest":
        positions = ROUNDINGS[nearest_mode](coordinates)[:, np.newaxis]
        weights = np.ones_like(positions)
    elif method == "linear":
        clamped = np.clip(coordinates, 0, size - 1)
        first = np.floor(clamped)
        positions = first[:, np.newaxis] + np.arange(2)
        weights = np.stack([1 - (clamped - first), clamped - first], 1)
    else:
        first = np.floor(coordinates)
        positions = first[:, np.newaxis] + np.arange(-1, 3)
        weights = _cubic_weights(coordinates - first, a)
    return np.clip(positions, 0, size - 1).astype(np.intp), weights


def _resize(
    x: np.ndarray,
    *,
    sizes: Sequence[int],
    scales: Sequence[float] = (),
    method: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
) -> np.ndarray:
    for i, out in enumerate(sizes):
        axis, size = 2 + i, x.shape[2 + i]
        scale = scales[i] if scales else None
        if out == size and scale in (None, 1.0):
            continue
        coordinates = source_coordinates(size, out, scale, coordinate_transformation_mode)
        positions, weights = _axis_taps(coordinates, size, method, nearest_mode, cubic_coeff_a)
        if method == "nearest":
            x = np.take(x, positions[:, 0], axis)
            continue
        spread = [1] * x.ndim
        spread[axis] = out
        parts = [np.take(x, positions[:, t], axis) * weights[:, t].reshape(spread) for t in range(TAPS[method])]
        x = sum(parts[1:], parts[0])
    return x


_interpolate = in_float64(_resize)


def _reference(x: np.ndarray, *, method: str, **attrs: object) -> np.ndarray:
    return (_resize if method == "nearest" else _interpolate)(x, method=method, **attrs)  # pyright: ignore[reportArgumentType]


def _samples() -> Iterator[Sample]:
    x = floats(1, 2, 4, 5)
    yield Sample(
        (x,),
        {"sizes": (8, 10), "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        "nearest, doubled",
    )
    for method in TAPS:
        for mode in TRANSFORMATIONS:
            attributes = {"method": method, "coordinate_transformation_mode": mode}
            yield Sample((x,), {"sizes": (7, 3), **attributes}, f"{method}, {mode}")
            yield Sample((x,), {"sizes": (6, 7), "scales": (1.6, 1.5), **attributes}, f"{method}, {mode}, scales")
    for rounding in ROUNDINGS:
        yield Sample((x,), {"sizes": (6, 9), "nearest_mode": rounding}, f"nearest, {rounding}")
    yield Sample(
        (x,), {"sizes": (1, 1), "method": "linear", "coordinate_transformation_mode": "align_corners"}, "to one pixel"
    )
    yield Sample((x,), {"sizes": (8, 9), "method": "cubic", "cubic_coeff_a": -0.5}, "cubic, other coefficient")
    yield Sample((floats(2, 3, 7),), {"sizes": (11,), "method": "linear"}, "one spatial axis")
    yield Sample((floats(1, 1, 3, 4, 2),), {"sizes": (5, 4, 3), "method": "linear"}, "three spatial axes")
    yield Sample((floats(1, 2, 3, 4, dtype="float16"),), {"sizes": (6, 6), "method": "linear"}, "float16")
    yield Sample((draw_numbers(1, 2, 3, 4, dtype="uint8"),), {"sizes": (6, 8)}, "uint8, nearest")


declare(
    "image.resize",
    ("x",),
    _resize_type,
    _reference,
    attributes={
        "sizes": Attribute("dims"),
        "scales": Attribute("floats", ()),
        "method": Attribute("str", "nearest", tuple(TAPS)),
        "coordinate_transformation_mode": Attribute("str", "half_pixel", TRANSFORMATIONS),
        "nearest_mode": Attribute("str", "round_prefer_floor", tuple(ROUNDINGS)),
        "cubic_coeff_a": Attribute("float", -0.75),
    },
    samples=_samples,
    flops=_resize_flops,
    summary="x (N, C, spatial...) resampled to other spatial sizes",
)
