"""Idioms of windows and grids: padded images, pools and resizing with any attributes, and the first of equals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernelyard.ir import Var, get_op
from kernelyard_fuzz.writer import Writer

SCALES = (2.0, 2.0, 3.0, 1.5, 2.3, 0.6)  # of images
# What networks have of the attributes of a resize.
USUAL_RESIZES = {
    "method": ("nearest", "linear"),
    "coordinate_transformation_mode": ("asymmetric", "half_pixel"),
}


def _padded(w: Writer, x: Var) -> Var:
    """A padded image under a window."""
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
    try:
        return window(w, padded, int(x.tensor_type.shape[1]))  # pyright: ignore[reportArgumentType]
    finally:
        if math.isinf(value):  # nothing else reads it
            del w.sketch.arrays[padded]


def window(w: Writer, padded: Var, channels: int) -> Var:
    """A convolution or a pool with any padding of its own."""
    own = tuple(w.chooser.below(2) for _ in range(4))
    kind = w.chooser.below(3)
    if kind == 0:
        return w.op("nn.conv2d", padded, w.weights(2, channels, 2, 3), padding=own)
    window: dict[str, Any] = {"pool_size": w.chooser.pick(((2, 2), (3, 3), (2, 3))), "padding": own}
    window |= {"strides": w.chooser.pick(((1, 1), (2, 2), (1, 2))), "ceil_mode": w.chooser.chance(25)}
    window |= {"dilation": w.chooser.pick(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2)))}
    if kind == 1:
        return w.op("nn.max_pool2d", padded, **window)
    return w.op("nn.avg_pool2d", padded, count_include_pad=w.chooser.chance(50), **window)


def pooled(w: Writer, x: Var) -> Var:
    """A pool of one to three axes with any window, that rounds up or counts its padding."""
    x = w.of_rank(x, w.chooser.between(3, 5))
    axes = x.tensor_type.rank - 2
    size = tuple(w.chooser.pick((1, 2, 2, 3)) for _ in range(axes))
    attrs: dict[str, Any] = {
        "pool_size": size,
        "strides": tuple(w.chooser.pick((1, 2, 2, 3)) for _ in size),
        "padding": tuple(w.chooser.below(each + (each > 1)) for each in size * 2),
        "dilation": tuple(w.chooser.pick((1, 1, 1, 2)) for _ in size),
        "ceil_mode": w.chooser.chance(50),
    }
    if w.chooser.chance(30):
        return w.op(f"nn.max_pool{axes}d", x, **attrs)
    return w.op(f"nn.avg_pool{axes}d", x, count_include_pad=w.chooser.chance(60), **attrs)


def resized(w: Writer, x: Var) -> Var:
    """An image of other sizes: by scales, whose sizes are rounded down, or to sizes alone."""
    x = w.of_rank(x, w.chooser.pick((3, 4, 4, 5)))
    before = [int(size) for size in x.tensor_type.shape[2:]]  # pyright: ignore[reportArgumentType]
    scale = w.chooser.pick(SCALES)
    scales = tuple(scale if w.chooser.chance(60) else w.chooser.pick(SCALES) for _ in before)
    sizes = tuple(max(math.floor(scale * size), 1) for scale, size in zip(scales, before, strict=True))
    choices = {name: attribute.choices for name, attribute in get_op("image.resize").attributes.items()}
    choices |= USUAL_RESIZES if w.chooser.chance(70) else {}
    attrs = {name: w.chooser.pick(values) for name, values in choices.items() if values}
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
    "padded": _padded,
    "pooled": pooled,
    "resized": resized,
    "ties": _ties,
}
