"""Attributes that convolution and pooling share, and padding that is chosen by the output's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelyard import dims
from kernelyard.dims import Dim
from kernelyard.plugins.api import Expr
from kernelyard_onnx.bounds import maximum
from kernelyard_onnx.node import Node


@dataclass(frozen=True)
class Window:
    """A sliding window. `padding` has all begins, then all ends; it may depend on sizes (`auto_pad`)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[Dim, ...]

    @property
    def static_padding(self) -> tuple[int, ...] | None:
        """The padding when it is all numbers, else None."""
        numbers = tuple(amount for amount in self.padding if isinstance(amount, int))
        return numbers if len(numbers) == len(self.padding) else None

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements from the window's first tap to its last, both counted."""
        return tuple(step * (taps - 1) + 1 for taps, step in zip(self.kernel, self.dilation, strict=True))


def read_window(node: Node, spatial: Sequence[Dim], kernel: Sequence[int]) -> Window:
    """Return the window of a convolution or pooling node.

    Raises: RejectedError.
    """
    rank = len(spatial)
    strides, dilation = _ints(node, "strides", (1,) * rank), _ints(node, "dilations", (1,) * rank)
    if not len(kernel) == len(strides) == len(dilation) == rank:
        node.reject(f"its kernel, strides and dilations do not all have {rank} numbers")
    window = Window(tuple(kernel), strides, dilation, _ints(node, "pads", (0,) * (2 * rank)))
    if len(window.padding) != 2 * rank:
        node.reject(f"its pads do not have {2 * rank} numbers")
    mode = node.attr("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return window
    if mode not in ("VALID", "SAME_UPPER", "SAME_LOWER"):
        node.reject(f"its auto_pad {mode!r} is unknown")
    padding = (0,) * (2 * rank) if mode == "VALID" else _compute_same_padding(window, spatial, mode == "SAME_UPPER")
    return Window(window.kernel, strides, dilation, padding)


def _ints(node: Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(node.attr(name) or default)


def _compute_same_padding(window: Window, spatial: Sequence[Dim], upper: bool) -> tuple[Dim, ...]:
    """Return the padding that makes the output `ceil(size / stride)` long; an odd element is last (upper) or first."""
    totals = [_total_same_padding(*axis) for axis in zip(spatial, window.reach, window.strides, strict=True)]
    small = [dims.floordiv(total, 2) for total in totals]
    large = [total - half for total, half in zip(totals, small, strict=True)]
    return (*small, *large) if upper else (*large, *small)


def _total_same_padding(size: Dim, reach: int, stride: int) -> Dim:
    if reach == 1:  # one tap per position never leaves the input
        return 0
    total = (dims.ceildiv(size, stride) - 1) * stride + reach - size
    return total if reach >= stride else maximum(total, 0)  # rounding up to the stride loses less than a stride


def pad_explicitly(node: Node, x: Expr, window: Window, value: float) -> tuple[Expr, Window]:
    """Return the input with padding that depends on sizes applied by an op of its own, and the window without
    padding."""
    rank = len(window.kernel)
    pads = (0, 0, *window.padding[:rank], 0, 0, *window.padding[rank:])
    padded = node.op("pad", x, pads=pads, mode="constant", value=value)
    return padded, Window(window.kernel, window.strides, window.dilation, (0,) * (2 * rank))
