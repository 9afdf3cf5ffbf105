"""Depthwise convolutions of integers by code of our own: see `kernelyard_llvm.byte_depthwise`.

oneDNN multiplies one pixel of a window at a time, and takes as long as in float32. Windows of images with constant
weights are computed here, where nothing but a clip comes between the sums and the integers that are stored.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence

import numpy as np

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import load_library
from kernelyard_dnnl.layout import channels_last
from kernelyard_dnnl.lowering import DESTINATION, SOURCE, Lowering
from kernelyard_dnnl.primitive_kind import INTEGERS
from kernelyard_dnnl.primitives.affine import affine_of
from kernelyard_dnnl.primitives.integer_product import IntegerProduct
from kernelyard_dnnl.primitives.post_ops import Step
from kernelyard_dnnl.processor import has_wide_integers
from kernelyard_dnnl.values import NativeKernel, Node, Value
from kernelyard_dnnl.work import WORTHWHILE_SECONDS
from kernelyard_llvm.byte_depthwise import QUAD, STEP, WIDTHS, Field, Kind, byte_depthwise_kernel, scratch_nbytes

WEIGHTS = enums.ARG["weights"]
LOADS = 16  # what a vector costs beside its channels: a window's addresses, and cutting off
PRODUCTS_PER_SECOND = 2e10
# Of fewer channels and smaller windows, the addresses of the pixels take longer than oneDNN does altogether.
MANY_CHANNELS, LARGE_WINDOW = 64, 20
OUTSIDE = -(1 << 40)  # where the pixels are that fill up a window's last four
SHIFT = 128  # what makes uint8 of int8
LARGEST = 2.0**31


class Window(NamedTuple):
    """Pixels of a window: how far down and right of a pixel each is, and the weights of each in all channels."""

    down: np.ndarray
    right: np.ndarray
    weights: np.ndarray


class Scaling(NamedTuple):
    """Scale sums of products: terms to begin with, scales and offsets, a number of each for each channel."""

    terms: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray


def lower_integer_depthwise(node: Node, graph: Lowering, product: IntegerProduct) -> Value | None:
    """Lower a depthwise convolution of integers; None where this is not one for the code here.

    product: what is given to oneDNN's primitive.
    """
    data = node.operands["data"]
    bounds = _bounds(product.steps, node.dtype)
    team = load_library().team_functions
    if bounds is None or team is None or not graph.native_kernels or not _is_possible(node, product):
        return None
    window, width = _window(node), _width(node.shape[1])
    scaling = _scaling(node, product, window)
    is_enough = bounds == _limits(node.dtype) and _largest(scaling, window) < LARGEST
    is_signed, is_result_signed = data.descriptor.dtype == "int8", node.dtype == "int8"
    kernel = byte_depthwise_kernel(Kind(width, is_signed, is_result_signed, None if is_enough else bounds), team)
    if kernel is None:
        return None
    parameters, offsets = _parameters(node, window, scaling, width)
    numbers = {**_numbers(node, window, width), **offsets}
    multiplied = len(window.down) * math.prod(node.shape)
    threads = graph.threads if multiplied / PRODUCTS_PER_SECOND >= WORTHWHILE_SECONDS else 1
    code = NativeKernel(
        implementation=f"depthwise:{width}:avx512_vnni",
        function=kernel.addresses["run"],
        record=tuple(numbers.get(place, 0) for place in Field if place is not Field.LENGTH),
        places={SOURCE: Field.SOURCE, WEIGHTS: Field.BLOCKS, DESTINATION: Field.RESULT},
        scratch_place=Field.SCRATCH,
        scratchpad_nbytes=scratch_nbytes(numbers[Field.PLACES], threads),
        threads=threads,
        flops=2 * multiplied,
        keep=kernel,
    )
    destination = graph.new(channels_last(node.shape, node.dtype))
    packed = graph.constant(parameters, f"depthwise {hashlib.sha256(parameters.tobytes()).hexdigest()}")
    source = graph.reorder(data, channels_last(data.shape, data.descriptor.dtype))
    graph.emit(code, {SOURCE: source, WEIGHTS: packed, DESTINATION: destination})
    return destination


def _is_possible(node: Node, product: IntegerProduct) -> bool:
    """Return True for images and constants, and a window worth its addresses, on a processor with AVX-512 VNNI."""
    data, weight, channels = node.operands["data"], node.operands["weight"], node.shape[1]
    affine = affine_of(node, "data")
    assert affine is not None
    return (
        len(node.shape) == 4
        and channels >= (MANY_CHANNELS if math.prod(weight.shape[1:]) < LARGE_WINDOW else min(WIDTHS) * 2)
        and node.attrs["groups"] == channels == data.shape[1]
        and weight.is_constant
        and affine.is_known
        and affine.has_one_scale
        and {node.dtype, data.descriptor.dtype} <= set(INTEGERS)
        and (product.bias is None or product.bias.is_constant)
        and all(value.is_constant for value in product.given.values())
        and has_wide_integers()
    )


def _bounds(steps: Sequence[Step], dtype: str) -> tuple[int, int] | None:
    """Return the least and the largest integer that post-ops leave; None for others than clips."""
    if dtype not in INTEGERS:
        return None
    low, high = map(float, _limits(dtype))
    for step in steps:
        if step.eltwise is None or step.eltwise.algorithm != "clip":
            return None
        low, high = max(low, step.eltwise.alpha), min(high, step.eltwise.beta)
    # Integers nearest to what was cut off lie between the integers nearest to the bounds.
    return (round(low), round(high)) if low <= high else None


def _limits(dtype: str) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _largest(scaling: Scaling, window: Window) -> float:
    """Return what no scaled sum is larger than."""
    sums = np.abs(window.weights).sum(axis=0) * np.iinfo(np.uint8).max + np.abs(scaling.terms)
    return float((sums * np.abs(scaling.scales) + np.abs(scaling.offsets)).max())


def _width(channels: int) -> int:
    """Return how many channels are computed at once."""
    fitting = [width for width in WIDTHS if width <= channels]
    return min(fitting, key=lambda width: -(-channels // width) * (width + LOADS))


def _window(node: Node) -> Window:
    """Return a node's window, with pixels outside at its end up to a multiple of four."""
    channels, _, *kernel = node.operands["weight"].shape
    tops, lefts = (
        np.arange(size) * dilation - before
        for size, dilation, before in zip(kernel, node.attrs["dilation"], node.sizes("padding_begin"), strict=True)
    )
    weights = node.operands["weight"].array().reshape(channels, -1).T.astype(np.int64)
    down, right = (each.reshape(-1) for each in np.meshgrid(tops, lefts, indexing="ij"))
    more = -len(down) % QUAD
    return Window(
        np.concatenate([down, np.full(more, OUTSIDE)]),
        np.concatenate([right, np.full(more, OUTSIDE)]),
        np.concatenate([weights, np.zeros((more, channels), np.int64)]),
    )


def _scaling(node: Node, product: IntegerProduct, window: Window) -> Scaling:
    """Return what sums begin with, which takes out the zero point of the data, and scales and biases."""
    affine, channels = affine_of(node, "data"), node.shape[1]
    assert affine is not None
    zero = affine.numbers[1] + (SHIFT if node.operands["data"].descriptor.dtype == "int8" else 0)
    scales = next(value for runtime, value in product.given.items() if runtime.what == "scales")
    return Scaling(
        -zero * window.weights.sum(axis=0),
        np.broadcast_to(scales.array().reshape(-1), channels),
        np.zeros(channels, np.float32) if product.bias is None else product.bias.array().reshape(-1),
    )


def _parameters(node: Node, window: Window, scaling: Scaling, width: int) -> tuple[np.ndarray, dict[Field, int]]:
    """Return what the kernel reads beside its data as bytes, and where the parts lie in them."""
    affine, channels = affine_of(node, "data"), node.shape[1]
    assert affine is not None
    blocks: list[np.ndarray] = []
    for start in _starts(channels, width):
        part = slice(start, start + width)
        quads = window.weights[:, part].reshape(-1, QUAD, width // 16, QUAD, QUAD)
        blocks.append(_bytes(quads.transpose(0, 3, 2, 4, 1).astype(np.int8)))
        for numbers, dtype in zip(scaling, (np.int32, np.float32, np.float32), strict=True):
            blocks.append(_bytes(numbers[part].astype(dtype).reshape(-1, QUAD, QUAD).transpose(1, 0, 2)))
    zeros = np.full(_round_up(channels, 8), affine.numbers[1], node.operands["data"].descriptor.dtype)
    last = np.full(_places(window) - len(window.down), OUTSIDE)
    tables = (np.concatenate([each, last]).astype(np.int64) for each in (window.down, window.right))
    parts = [np.concatenate(blocks), *map(_bytes, (zeros, *tables))]
    ends = np.cumsum([len(each) for each in parts])
    places: dict[Field, int] = dict(zip((Field.ZEROS, Field.DOWN, Field.RIGHT), map(int, ends[:-1]), strict=True))
    return np.concatenate(parts), places


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _places(window: Window) -> int:
    """Return how many addresses the kernel keeps of a window."""
    return _round_up(len(window.down), STEP)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _starts(channels: int, width: int) -> Iterator[int]:
    """Yield the first channel of each block; the last ones overlap where the channels are no multiple."""
    return (min(start, channels - width) for start in range(0, channels, width))


def _numbers(node: Node, window: Window, width: int) -> dict[Field, int]:
    """Return the numbers of a kernel's record."""
    batch, channels, height, columns = node.shape
    *_, source_height, source_width = node.operands["data"].shape
    down, right = node.attrs["strides"]
    kept = window.right[window.right > OUTSIDE]
    x = np.arange(columns)[:, None] * right + kept
    is_inside = ((x >= 0) & (x < source_width)).all(axis=1)
    inner = np.flatnonzero(is_inside[1:] & is_inside[:-1]) + 1
    return {
        Field.ROWS: batch * height,
        Field.ROWS_OF_IMAGE: height,
        Field.COLUMNS: columns,
        Field.HEIGHT: source_height,
        Field.WIDTH: source_width,
        Field.CHANNELS: channels,
        Field.BLOCK_COUNT: -(-channels // width),
        Field.QUADS: len(window.down) // QUAD,
        Field.PLACES: _places(window),
        Field.STRIDE_DOWN: down,
        Field.STRIDE_RIGHT: right,
        Field.FIRST_INNER: int(inner[0]) if len(inner) else columns,
        Field.LAST_INNER: int(inner[-1]) + 1 if len(inner) else columns,
    }
