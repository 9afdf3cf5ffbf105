"""Merge convolutions of one image whose results are added: they are one convolution, whose weights are the sum.

Networks are trained with several branches in parallel, and normalisation of the image itself beside them; what such a
block computes is linear in its image.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kernelyard.ir import Call, Constant, Expr, Function, FunctionMutator, IRModule, Var, get_op
from kernelyard.ir.visitor import read_once
from kernelyard.transform.algebraic.channel_affine import CONVOLUTIONS, channel_affine, channel_constant
from kernelyard.transform.pass_infra.pass_base import FunctionPass, PassContext
from kernelyard.transform.pass_infra.rewrite_rule import find_one_use_call

# Numbers of 16 bits stay as they are spelled: where each sum is rounded is part of what a model says.
DTYPES = ("float32", "float64")


class MergeParallelConvolutions(FunctionPass):
    """`conv(x, W) + conv(x, V)` becomes `conv(x, W + V)`, `conv(x, W) + x * s` becomes `conv(x, W + s at the centre)`.

    Weights are constants, results are read by the sum alone, and each may have a bias per channel. Strides and groups
    are equal, and the window that covers both has no more taps than both have together. x * s stands for x, products
    with and sums of constants per channel, and batch norms.

    Source: Ding et al. 2021 (arXiv:2101.03697), structural re-parameterization.
    """

    name = "merge_parallel_convolutions"

    def transform(self, function: Function, module: IRModule, context: PassContext) -> Function:
        return _Merger(function).mutate(function)


class _Window(NamedTuple):
    """Weights (O, I / groups, ...) of a convolution; along each spatial axis, where the first tap and the last one lie
    from the place that is computed, and how many places lie between two."""

    weight: np.ndarray
    first: tuple[int, ...]
    last: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def taps(self) -> int:
        return math.prod(self.weight.shape[2:])

    def spread(self, first: tuple[int, ...], last: tuple[int, ...], dilation: tuple[int, ...]) -> np.ndarray | None:
        """Return float64 weights with zeros around them, as a window with these taps; None where taps do not meet."""
        before = [own - new for own, new in zip(self.first, first, strict=True)]
        after = [new - own for own, new in zip(self.last, last, strict=True)]
        if any(a % step or b % step for a, b, step in zip(before, after, dilation, strict=True)):
            return None
        pads = [(a // step, b // step) for a, b, step in zip(before, after, dilation, strict=True)]
        return np.pad(self.weight.astype(np.float64), [(0, 0), (0, 0), *pads])


class _Branch(NamedTuple):
    """Describe a linear function of an image: a window over it, by a convolution (None: by channel), and a bias."""

    x: Expr
    convolution: Call | None
    scale: np.ndarray | None
    bias: np.ndarray | None


class _Merger(FunctionMutator):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self._read_once = read_once(function)

    def rewrite(self, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or value.op_name != "add" or value.tensor_type.dtype not in DTYPES:
            return value
        left, right = value.args
        if left is right or left.type != right.type or value.tensor_type.rank < 3:
            return value
        if not isinstance(value.tensor_type.shape[1], int):
            return value
        one, other = self._convolution(left), self._convolution(right)
        if one is None:
            one, other, left, right = other, one, right, left
        other = other or self._scale_image(right)
        if one is None or other is None or one.x is not other.x:
            return value
        return self._merge(one, other, var.origin) or value

    def _merge(self, one: _Branch, other: _Branch, origin: str) -> Call | None:
        call = _sum_convolutions(one, other)
        if call is None:
            return None
        biases = [branch.bias for branch in (one, other) if branch.bias is not None]
        if not biases:
            return call
        product = self.emit(call, "merged", origin)
        assert isinstance(product, Var)
        self._read_once.add(product)
        type_ = call.tensor_type
        return Call(get_op("add"), [product, channel_constant(np.sum(biases, axis=0), type_.rank, 1, type_.dtype)])

    def _convolution(self, operand: Expr) -> _Branch | None:
        """Match `operand` as a convolution with constant weights, with or without a bias."""
        call, bias = find_one_use_call(self, operand, self._read_once), None
        if call is not None and call.op_name == "add":
            step = channel_affine(call, 1, call.tensor_type.shape[1])  # pyright: ignore[reportArgumentType]
            call, bias = (
                (None, None) if step is None else (find_one_use_call(self, step.x, self._read_once), step.shift)
            )
        if call is None or call.op_name not in CONVOLUTIONS or not isinstance(call.args[1], Constant):
            return None
        return _Branch(call.args[0], call, None, bias)

    def _scale_image(self, operand: Expr) -> _Branch | None:
        """Match `operand` as an image, times and plus numbers per channel."""
        channels = operand.tensor_type.shape[1]
        assert isinstance(channels, int)
        scale, bias, x = np.ones(channels), np.zeros(channels), operand
        while (call := find_one_use_call(self, x, self._read_once)) is not None:
            step = channel_affine(call, 1, channels)
            if step is None:
                break
            bias = bias if step.shift is None else bias + scale * step.shift
            scale = scale if step.scale is None else scale * step.scale
            x = step.x
        return _Branch(x, None, scale, bias if bias.any() else None)


def _sum_convolutions(one: _Branch, other: _Branch) -> Call | None:
    """Return the convolution that gives the sum of both, without biases; None where there is none that is cheaper."""
    call = one.convolution
    assert call is not None
    window, more = _window(call), _window_beside(other, call)
    if more is None or not _fit(window, more):
        return None
    first, last = tuple(map(min, window.first, more.first)), tuple(map(max, window.last, more.last))
    dilation = tuple(map(max, window.dilation, more.dilation))
    parts = [each.spread(first, last, dilation) for each in (window, more)]
    if any(part is None for part in parts):
        return None
    with np.errstate(over="ignore"):
        weight = np.sum(parts, axis=0).astype(window.weight.dtype)  # pyright: ignore[reportCallIssue, reportArgumentType]
    own = 0 if other.convolution is None else more.taps
    if math.prod(weight.shape[2:]) > window.taps + own or not np.all(np.isfinite(weight)):
        return None
    rank = len(first)
    ends = [end + new - old for end, new, old in zip(call.attrs["padding"][rank:], last, window.last, strict=True)]
    padding = (*(-place for place in first), *ends)
    attrs = {**call.attrs, "padding": padding, "dilation": dilation}
    return Call(call.op, [one.x, Constant(weight)], attrs)


def _fit(window: _Window, more: _Window) -> bool:
    """Return True where the taps of both lie on one grid; those of one tap lie on any."""
    steps = zip(window.dilation, more.dilation, window.weight.shape[2:], more.weight.shape[2:], strict=True)
    return window.weight.shape[:2] == more.weight.shape[:2] and all(a == b or 1 in (m, n) for a, b, m, n in steps)


def _window(call: Call) -> _Window:
    weight = call.args[1]
    assert isinstance(weight, Constant)
    sizes = weight.data.shape[2:]
    # The dilation of a single tap is that of whatever it is merged with.
    dilation = tuple(1 if size == 1 else step for size, step in zip(sizes, call.attrs["dilation"], strict=True))
    first = tuple(-place for place in call.attrs["padding"][: len(sizes)])
    last = tuple(place + step * (size - 1) for place, step, size in zip(first, dilation, sizes, strict=True))
    return _Window(weight.data, first, last, dilation)


def _window_beside(branch: _Branch, call: Call) -> _Window | None:
    """Return the window of a branch, to be added to that of `call`; None where they do not go together."""
    if branch.convolution is not None:
        same = all(branch.convolution.attrs[name] == call.attrs[name] for name in ("strides", "groups"))
        return _window(branch.convolution) if same and branch.convolution.op_name == call.op_name else None
    filters, per_group, *sizes = call.args[1].tensor_type.shape
    rank, groups = len(sizes), call.attrs["groups"]
    if filters != per_group * groups or set(call.attrs["strides"]) != {1} or branch.scale is None:
        return None
    assert isinstance(filters, int)  # a constant's
    assert isinstance(per_group, int)
    weight = np.zeros((filters, per_group, *[1] * rank))
    weight[np.arange(filters), np.arange(filters) % per_group] = branch.scale.reshape(-1, *[1] * rank)
    return _Window(weight, (0,) * rank, (0,) * rank, (1,) * rank)
