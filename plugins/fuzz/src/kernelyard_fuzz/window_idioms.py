"""Idioms of windows and grids: padded images, pools and resizing with any attributes, and the first of equals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernelyard.ir import Var, get_op
from kernelyard_fuzz.writer import Writer

SCALES = (2.0, 2.0, 3.0, 1.5, 2.3, 0.6)  # of images
# How networks resize; what is not said here is as by default.
USUAL_RESIZES: Sequence[Mapping[str, Any]] = (
    {"method": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"method": "nearest", "coordinate_transformation_mode": "half_pixel"},
    {"method": "linear", "coordinate_transformation_mode": "half_pixel"},
)


def _write_padded_window(w: Writer, x: Var) -> Var:
    """Write a padded image under a window."""
    x = w.of_rank(x, 4)
    if w.chooser.chance(50):
        x = (
            w.op(w.chooser.pick(("nn.relu", "sigmoid")), x)
            if w.chooser.chance(70)
            else w.op("clip", x, min=0.0, max=6.0)
        )
    before, after = ((0, 0, *(w.chooser.below(3) for _ in range(2))) for _ in range(2))
    value = w.chooser.pick((0.0, 0.0, -math.inf, 0.5))
    (padded,) = w.sketch.apply(get_op("pad"), [x], {"pads": (*before, *after), "value": value}, largest=math.inf)
    return window(w, padded, int(x.tensor_type.shape[1]))  # pyright: ignore[reportArgumentType]


def _write_padded_maximum(w: Writer, x: Var) -> Var:
    """Write zeros around numbers that are never negative, under a max pool, whose own padding they could be."""
    x = w.op(w.chooser.pick(("nn.relu", "sigmoid", "abs", "nn.relu")), w.of_rank(x, 4))
    usual = {"value": 0.0, "border": (1, 1), "window": (3, 3), "dilation": (1, 1), "strides": (2, 2)}
    unusual: dict[str, Sequence[Any]] = {
        "value": (0.5, -0.5, 1.0),
        "border": ((0, 1), (2, 1)),
        "window": ((2, 2), (2, 3)),
    }
    how = w.nearly(usual, unusual | {"dilation": ((2, 1),), "strides": ((1, 1),)})
    padded = w.op("pad", x, pads=(0, 0, *how["border"]) * 2, value=how["value"])
    return w.op("nn.max_pool2d", padded, pool_size=how["window"], strides=how["strides"], dilation=how["dilation"])


def window(w: Writer, padded: Var, channels: int) -> Var:
    """A convolution or a pool with any padding of its own."""
    own = tuple(w.chooser.below(2) for _ in range(4))
    kind = w.chooser.below(3)
    if kind == 0:
        return w.op("nn.conv2d", padded, w.weights(2, channels, 2, 3), padding=own)
    window: dict[str, Any] = {"pool_size": w.chooser.pick(((2, 2), (3, 3), (2, 3))), "padding": own}
    window["strides"] = w.chooser.pick(((1, 1), (2, 2), (1, 2)))
    unusual = {
        "ceil_mode": (True,),
        "dilation": ((2, 1), (1, 2)),
        "padding": ((0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 1, 1)),
    }
    window |= w.nearly({}, unusual)
    if kind == 1:
        return w.op("nn.max_pool2d", padded, **window)
    return w.op("nn.avg_pool2d", padded, count_include_pad=w.chooser.chance(50), **window)


def _image(w: Writer, x: Var) -> Var:
    """Return x where it is an image, or a row of it, or a room; else its elements as one."""
    return x if 3 <= x.tensor_type.rank <= 5 else w.of_rank(x, w.chooser.pick((3, 4, 4, 5)))


def write_pool(w: Writer, x: Var) -> Var:
    """Write a pool of one to three axes with any window, that rounds up or counts its padding."""
    x = _image(w, x)
    axes = x.tensor_type.rank - 2
    size = tuple(w.chooser.pick((1, 2, 2, 3)) for _ in range(axes))
    same = (*((each - 1) // 2 for each in size), *(each // 2 for each in size))  # as much as the window needs
    usual = {"padding": w.chooser.pick((same, tuple(each // 2 for each in size) * 2, (0,) * 2 * axes, same))}
    unusual: dict[str, Sequence[Any]] = {"dilation": (tuple(w.chooser.pick((1, 2)) for _ in size),)}
    unusual |= {"padding": (tuple(w.chooser.below(each + (each > 1)) for each in size * 2),), "ceil_mode": (True,)}
    attrs = {"pool_size": size, "strides": tuple(w.chooser.pick((1, 2, 2, 3)) for _ in size)}
    attrs |= w.nearly(usual, unusual)
    if w.chooser.chance(30):
        return w.op(f"nn.max_pool{axes}d", x, **attrs)
    return w.op(f"nn.avg_pool{axes}d", x, count_include_pad=w.chooser.chance(75), **attrs)


def write_resize(w: Writer, x: Var) -> Var:
    """Resize an image: by scales, whose sizes are rounded down, or to sizes alone."""
    x = _image(w, x)
    before = [int(size) for size in x.tensor_type.shape[2:]]  # pyright: ignore[reportArgumentType]
    choices = {name: attribute.choices for name, attribute in get_op("image.resize").attributes.items()}
    unusual: dict[str, Sequence[Any]] = {name: values for name, values in choices.items() if values}
    unusual["scales"] = (tuple(w.chooser.pick(SCALES) for _ in before),)
    attrs = w.nearly(
        {**w.chooser.pick(USUAL_RESIZES), "scales": (w.chooser.pick((2.0, 2.0, 3.0)),) * len(before)}, unusual
    )
    scales = attrs.pop("scales")
    sizes = tuple(max(math.floor(scale * size), 1) for scale, size in zip(scales, before, strict=True))
    stated = scales if w.chooser.chance(60) else ()
    return w.op("image.resize", x, sizes=sizes, scales=stated, **attrs)


def _ties(w: Writer, x: Var) -> Var:
    """Which of few numbers is the largest, and where the first or the last of equal ones is."""
    shape = x.tensor_type.shape
    halves = np.rint(2 * w.array(*map(int, shape))) / 2  # pyright: ignore[reportArgumentType]
    y = w.sketch.input(halves.astype(np.float32))
    if w.chooser.chance(40):
        y = w.op(w.chooser.pick(("nn.relu", "abs", "negative", "round")), y)
    axis = w.chooser.below(len(shape))
    if w.chooser.chance(20):
        return w.op(w.chooser.pick(("equal", "greater_equal", "less")), y, w.sketch.input(w.array(*shape[axis:])))  # pyright: ignore[reportArgumentType]
    is_last = w.chooser.chance(50)
    name = w.chooser.pick(("argmax", "argmin"))
    return w.op(name, y, axis=axis, keepdims=w.chooser.chance(50), select_last_index=is_last)


WINDOW_IDIOMS: Mapping[str, Callable[[Writer, Var], object]] = {
    "padded": _write_padded_window,
    "padded_maximum": _write_padded_maximum,
    "pooled": write_pool,
    "resized": write_resize,
    "ties": _ties,
}
