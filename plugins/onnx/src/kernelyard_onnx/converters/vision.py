"""Pieces of images: regions of interest, columns of patches, samples beside the grid, maxima with their places."""

from __future__ import annotations

import math

import numpy as np

from kernelyard import dims
from kernelyard.dtypes import to_numpy
from kernelyard.plugins.api import Expr, window_table
from kernelyard_onnx.converters.convolution import add_bias, kernel_of, spatial_rank
from kernelyard_onnx.converters.spatial import Tap, linear_taps, sample
from kernelyard_onnx.converters.windows import read_window
from kernelyard_onnx.node import Node
from kernelyard_onnx.registry import MICROSOFT, converter


@converter("RoiAlign", since=10)
def roi_align(node: Node) -> Expr:
    mode = node.attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
    samples = int(node.attr("sampling_ratio", 0))
    return node.op(
        "image.roi_align" if samples > 0 else "image.roi_align_adaptive",
        *(node.input(index) for index in range(3)),
        **({"sampling_ratio": samples} if samples > 0 else {}),
        sizes=(int(node.attr("output_height", 1)), int(node.attr("output_width", 1))),
        spatial_scale=float(node.attr("spatial_scale", 1.0)),
        mode=node.attr("mode", "avg"),
        half_pixel=mode == "half_pixel",
    )


@converter("MaxRoiPool")
def roi_max_pool(node: Node) -> Expr:
    scale = float(node.attr("spatial_scale", 1.0))
    sizes = tuple(node.require_attr("pooled_shape"))
    return node.op("image.roi_max_pool", node.input(0), node.input(1), sizes=sizes, spatial_scale=scale)


@converter("Col2Im", since=18)
def columns_to_image(node: Node) -> Expr:
    """Sum overlapping patches: a transposed convolution whose weights copy each column to its place.

    X: (N, C * elements of a patch, patches) -> (N, C, image...).
    """
    x, image, kernel = node.input(0), node.ints(node.input(1), "image_shape"), node.ints(node.input(2), "block_shape")
    rank = len(image)
    window = read_window(node, image, kernel)
    pads = window.static_padding or (0,) * (2 * rank)
    spans = [size + pads[axis] + pads[rank + axis] - window.reach[axis] for axis, size in enumerate(image)]
    steps = [span // stride + 1 for span, stride in zip(spans, window.strides, strict=True)]
    elements = math.prod(kernel)
    channels = node.require_fixed(dims.floordiv(node.shape(x)[1], elements), "number of channels")
    blocks = node.reshape(x, (node.shape(x)[0], channels * elements, *steps))
    weights = np.zeros((channels, elements, 1, elements), to_numpy(node.dtype(x)))
    weights[:, np.arange(elements), 0, np.arange(elements)] = 1
    return node.op(
        f"nn.conv{rank if rank <= 3 else node.reject(f'its image has {rank} axes')}d_transpose",
        blocks,
        weights.reshape(channels * elements, 1, *kernel),
        strides=window.strides,
        padding=pads,
        dilation=window.dilation,
        groups=channels,
        output_padding=tuple(span % stride for span, stride in zip(spans, window.strides, strict=True)),
    )


@converter("DeformConv", since=19)
def deformable_convolution(node: Node) -> Expr:
    """Sample at shifted positions, then multiply by one matrix per group.

    X: (N, C, H, W), W: (M, C / group, kernel...), offset: (N, offset groups * elements * 2, out...).
    """
    x, weight, offset = (node.input(index) for index in range(3))
    bias, mask = node.optional(3), node.optional(4)
    rank, kernel = spatial_rank(node, x), kernel_of(node, weight)
    window = read_window(node, node.shape(x)[2:], kernel)
    groups, shifts = int(node.attr("group", 1)), int(node.attr("offset_group", 1))
    batch, channels, *spatial = node.shape(x)
    made = [node.require_fixed(size, "size of its result") for size in node.shape(offset)[2:]]
    elements, outputs = math.prod(kernel), math.prod(made)
    images = dims.product((batch, shifts))
    moved = node.reshape(offset, (images, elements, rank, outputs))
    taps = []
    for axis, size in enumerate(spatial):
        grid = _sample_positions(window.strides[axis], window.dilation[axis], window.padding[axis], axis, kernel, made)
        shift = node.select(moved, 2, axis)
        at = node.op("add", shift, grid.astype(to_numpy(node.dtype(x))))
        taps.append(linear_taps(node, node.reshape(at, (images, elements * outputs)), size))
    shape = (images, dims.floordiv(channels, shifts), elements * outputs)
    values = sample(node, node.reshape(x, (*shape[:2], dims.product(spatial))), taps, spatial, shape)
    if mask is not None:
        values = node.op("multiply", values, node.reshape(mask, (images, 1, elements * outputs)))
    depth = dims.floordiv(channels, groups) * elements
    made_of = node.reshape(values, (batch, groups, depth, outputs))
    results = node.require_fixed(node.shape(weight)[0], "number of output channels")
    product = node.op("matmul", node.reshape(weight, (groups, results // groups, depth)), made_of)
    return add_bias(node, node.reshape(product, (batch, results, *made)), bias)


def _sample_positions(
    stride: int, dilation: int, pad: object, axis: int, kernel: tuple[int, ...], made: list[int]
) -> np.ndarray:
    """Along one axis, where each element of the kernel lies for each result: (elements, results)."""
    element = np.indices(kernel)[axis].reshape(-1, 1) * dilation
    return element + np.indices(made)[axis].reshape(1, -1) * stride - np.asarray(pad)


@converter("MaxUnpool", since=9)
def max_unpool(node: Node) -> Expr:
    """Scatter each element to its index in a tensor of zeros."""
    x, indices, stated = node.input(0), node.input(1), node.optional(2)
    window = read_window(node, node.shape(x)[2:], tuple(node.require_attr("kernel_shape")))
    rank = len(window.kernel)
    sizes = [
        (size - 1) * window.strides[axis] - window.padding[axis] - window.padding[rank + axis] + window.kernel[axis]
        for axis, size in enumerate(node.shape(x)[2:])
    ]
    shape = (*node.shape(x)[:2], *sizes)
    count = dims.product(node.shape(x))
    zeros = node.full(0, (dims.product(shape),), node.dtype(x))
    flat = [node.reshape(value, (count,)) for value in (indices, x)]
    result = node.reshape(node.op("scatter_elements", zeros, *flat, axis=0), shape)
    if stated is None:
        return result
    wanted = node.dims(stated, "output_shape")
    behind = [want - have for want, have in zip(wanted, shape, strict=True)]
    return node.op("pad", result, pads=(*(0,) * len(shape), *behind), mode="constant", value=0.0)


def argmax_indices(node: Node, x: Expr, pooled: Expr) -> Expr:
    """Return the argmax indices of a maximum pooling: flat into the whole of `x`, of fixed sizes."""
    spatial = [node.require_fixed(size, "size of its image") for size in node.shape(x)[2:]]
    made = [node.require_fixed(size, "size of its result") for size in node.shape(pooled)[2:]]
    window = read_window(node, spatial, tuple(node.require_attr("kernel_shape")))
    pads = tuple(node.require_fixed(pad, "padding") for pad in window.padding)
    node.affordable(math.prod(window.kernel) * math.prod(made), "table of places")
    how = spatial, made, window.kernel, window.strides, pads[: len(spatial)], window.dilation
    names = window_table(*how, order="F" if node.attr("storage_order", 0) else "C")
    found = node.places_of_maxima(x, window_table(*how), names)
    batch, channels = node.shape(x)[:2]
    image = node.op("arange", start=0, step=1, count=dims.product((batch, channels)), dtype="int64")
    first = node.reshape(node.op("multiply", image, math.prod(spatial)), (batch, channels, 1))
    return node.reshape(node.op("add", found, first), node.shape(pooled))


# --- crops ------------------------------------------------------------------------------------------------------------
@converter("CropAndResize", domain=MICROSOFT)
def crop_and_resize(node: Node) -> Expr:
    """Resample boxes (y1, x1, y2, x2), whose corners are shares of the last row and column, to one size.

    X: (N, C, H, W), boxes: (boxes, 4) -> (boxes, C, *crop_size); what lies outside the image has a value of its own.
    """
    x, boxes, images, sizes = node.require_inputs()
    mode = node.attr("mode", "bilinear")
    if mode not in ("bilinear", "nearest"):
        node.reject(f"its mode {mode!r} is unknown")
    made, (_, channels, *spatial) = node.ints(sizes, "crop_size"), node.shape(x)
    count, (height, width) = node.shape(boxes)[0], made
    taps: list[list[Tap]] = []
    outside: Expr | None = None
    for axis, (size, own) in enumerate(zip(spatial, made, strict=True)):
        at, last = _positions_in_box(node, boxes, axis, size, own)
        shape = (count, own, 1) if axis == 0 else (count, 1, own)
        at = node.broadcast_to(node.reshape(at, shape), (count, height, width))
        at = node.reshape(at, (count, height * width))
        beyond = node.op("logical_or", node.op("less", at, 0.0), node.op("greater", at, last))
        outside = beyond if outside is None else node.op("logical_or", outside, beyond)
        # Halves go up, as C's roundf does with numbers that are not negative.
        nearest = [Tap(node.op("floor", node.op("add", at, 0.5)), None)]
        taps.append(nearest if mode == "nearest" else linear_taps(node, at, size))
    chosen = node.reshape(node.op("take", x, images, axis=0), (count, channels, dims.product(spatial)))
    values = sample(node, chosen, taps, spatial, (count, channels, height * width))
    filler = node.full(float(node.attr("extrapolation_value", 0.0)), (), node.dtype(x))
    if outside is not None:
        values = node.op("where", node.reshape(outside, (count, 1, height * width)), filler, values)
    return node.reshape(values, (count, channels, height, width))


def _positions_in_box(node: Node, boxes: Expr, axis: int, size: dims.Dim, count: int) -> tuple[Expr, Expr]:
    """Return where the samples of boxes lie along an axis of the image, (boxes, count), and where that ends."""
    last = node.expr(size - 1, node.dtype(boxes))
    begin, end = (node.op("multiply", node.slice(boxes, 1, i, i + 1), last) for i in (axis, 2 + axis))
    if count == 1:
        return node.op("multiply", node.op("add", begin, end), 0.5), last
    step = node.op("divide", node.op("subtract", end, begin), float(count - 1))
    steps = node.cast(node.op("arange", start=0, step=1, count=count, dtype="int64"), node.dtype(boxes))
    return node.op("add", begin, node.op("multiply", step, node.reshape(steps, (1, count)))), last
