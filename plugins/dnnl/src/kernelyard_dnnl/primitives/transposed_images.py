"""conv_transpose over an image as convolutions of its phases (polyphase decomposition).

With stride s, output s o + r is, for each r < s along each dim, a convolution with every s-th tap of the window. Phases
that read the same pixels are filters of one convolution: where windows lie side by side, as those that double an image
in a U-Net, all are. A copy puts the phases in their places.

oneDNN's own transposed convolutions take 4 to 14 ms to describe and as long to generate, at each new size, and apply no
post-ops: a second pass over the result does. So the copy costs nothing where there are any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kernelyard.runtime.api import NamedTuple, aligned_bytes
from kernelyard_dnnl.layout import channels_last, dense
from kernelyard_dnnl.lowering import Lowering
from kernelyard_dnnl.primitives.convolution import lower_convolution
from kernelyard_dnnl.primitives.post_ops import activations_of
from kernelyard_dnnl.primitives.transposed_sequences import repeat_vector
from kernelyard_dnnl.values import Node, Value

# Several convolutions and copies take 0.7 to 0.8 of the time of the library's code with so few filters, and 0.1 to 0.2
# with so long a stride; else 0.9 to 1.1 of it. That is with vectors of 8; with those of 16 nothing was measured.
FEW_FILTERS, LONG_STRIDE = 16, 8


class Phases(NamedTuple):
    """Neighbouring phases of a dim that read the same pixels.

    first, length: which. tap: the first one's first tap. taps: of each. shift: by how many pixels a window ends behind
    the pixel of its outputs.
    """

    first: int
    length: int
    tap: int
    taps: int
    shift: int

    def padding(self, pixels: int, outputs: int) -> tuple[int, int]:
        """Return the zeros around so many pixels for so many outputs of each phase; negative where not all are read."""
        return self.taps - 1 - self.shift, outputs + self.shift - pixels


def are_better_as_convolutions(node: Node) -> bool:
    """Return True for a dense window of constant weights over an image, without gaps, with a bias or activations, whose
    phases read the same pixels; on AVX2 also for few filters or long strides."""
    weight, attrs = node.operands["weight"], node.attrs
    return (
        len(node.shape) > 3
        and weight.is_constant
        and attrs["groups"] == 1
        and set(attrs["dilation"]) == {1}
        and math.prod(attrs["strides"]) > 1
        and {node.dtype, *(value.descriptor.dtype for value in node.sequence)} == {"float32"}
        and bool(node.post_ops or "bias" in node.operands)
        and activations_of(node) is not None
        and _have_windows(node)
        and (math.prod(map(len, _phases_of(node))) == 1 or _are_better_apart(node))
    )


def _have_windows(node: Node) -> bool:
    """Return True when each phase has taps, and as many outputs as the others, which read all pixels."""
    sizes = zip(node.operands["data"].shape[2:], node.shape[2:], node.attrs["strides"], strict=True)
    return all(
        outputs % stride == 0 and phases.taps > 0 and min(phases.padding(pixels, outputs // stride)) >= 0
        for (pixels, outputs, stride), dim in zip(sizes, _phases_of(node), strict=True)
        for phases in dim
    )


def _are_better_apart(node: Node) -> bool:
    from kernelyard_dnnl.processor import has_wide_vectors  # inside: few windows overlap

    is_few = node.shape[1] <= FEW_FILTERS or min(node.attrs["strides"]) >= LONG_STRIDE
    return is_few and not has_wide_vectors()


def lower_images(node: Node, graph: Lowering) -> Value:
    """Lower a conv_transpose node for which `are_better_as_convolutions`."""
    result = graph.new(channels_last(node.shape, node.dtype))
    strides, filters = node.attrs["strides"], node.shape[1]
    outputs = [size // stride for size, stride in zip(node.shape[2:], strides, strict=True)]
    split = [each for pair in zip(outputs, strides, strict=True) for each in pair]
    places = graph.reshape(_make_channels_inner(result), (node.shape[0], *split, filters))
    for chosen in itertools.product(*_phases_of(node)):
        made = _convolve(node, graph, chosen, outputs)
        start = [each for phases in chosen for each in (0, phases.first)]
        graph.copy_into(made, places.part((0, *start, 0), made.shape), "phases in their places")
    return result


def _phases_of(node: Node) -> list[list[Phases]]:
    window, strides = node.operands["weight"].shape[2:], node.attrs["strides"]
    return list(map(_phases, window, strides, node.sizes("padding_begin")))


def _phases(window: int, stride: int, begin: int) -> list[Phases]:
    """Return the phases of a dim in order."""
    found: list[Phases] = []
    for phase in range(stride):
        shift, tap = divmod(phase + begin, stride)
        taps = math.ceil((window - tap) / stride)
        if found and (found[-1].shift, found[-1].taps) == (shift, taps):
            found[-1] = found[-1]._replace(length=found[-1].length + 1)
        else:
            found.append(Phases(phase, 1, tap, taps, shift))
    return found


def _convolve(node: Node, graph: Lowering, chosen: Sequence[Phases], outputs: Sequence[int]) -> Value:
    """Return the outputs of some phases of each dim, in the order of the result: (N, outputs, phases, ..., filters)."""
    data, filters = node.operands["data"], node.shape[1]
    counts = [phases.length for phases in chosen]
    operands = {"data": data, "weight": _weight(node, graph, chosen)}
    if "bias" in node.operands:
        operands["bias"] = repeat_vector(node.operands["bias"], math.prod(counts), graph)
    padding = [phases.padding(*sizes) for phases, *sizes in zip(chosen, data.shape[2:], outputs, strict=True)]
    begin, end = zip(*padding, strict=True)
    window = {"strides": (1,) * len(counts), "padding_begin": begin, "padding_end": end, "winograd": False}
    shape, sequence = (data.shape[0], math.prod(counts) * filters, *outputs), tuple(operands.values())
    convolution = replace(node, attrs={**node.attrs, **window}, operands=operands, sequence=sequence, shape=shape)
    made = _make_channels_inner(graph.make_channels_last(lower_convolution(convolution, graph)))
    rank = len(counts)
    order = [axis for dim in range(1, rank + 1) for axis in (dim, dim + rank)]
    return graph.reshape(made, (data.shape[0], *outputs, *counts, filters)).permute((0, *order, 2 * rank + 1))


def _make_channels_inner(value: Value) -> Value:
    """Return the same bytes with the channels as the last dim."""
    return value.permute((0, *range(2, len(value.shape)), 1))


def _weight(node: Node, graph: Lowering, chosen: Sequence[Phases]) -> Value:
    """Return constant weights (channels, filters, window...) as those of a convolution, whose filters are those of each
    phase."""
    weight, strides = node.operands["weight"], tuple(node.attrs["strides"])
    if weight.descriptor.strides is None:
        weight = graph.make_plain(weight)
    channels, filters, *_ = weight.shape
    counts, taps = [each.length for each in chosen], [each.taps for each in chosen]

    def make(key: str) -> Value:
        layout = dense((math.prod(counts) * filters, channels, *taps), "float32")
        data = aligned_bytes(layout.nbytes)
        parts = data.view(np.float32).reshape(*counts, filters, channels, *taps)
        return graph.packed.fill_constant(weight, layout, data, key, lambda: _fill(parts, weight, chosen, strides))

    return graph.packed.derive(weight, f"phases {chosen} of {strides}", make)


def _fill(parts: np.ndarray, weight: Value, chosen: Sequence[Phases], strides: Sequence[int]) -> None:
    """Write the taps of each phase, in the order in which a convolution reads what came before."""
    filters_first = weight.array().swapaxes(0, 1)
    for numbers in itertools.product(*(range(each.length) for each in chosen)):
        taps = [
            slice(each.tap + number, None, stride)
            for each, number, stride in zip(chosen, numbers, strides, strict=True)
        ]
        parts[numbers] = np.flip(filters_first[(..., *taps)], tuple(range(2, 2 + len(taps))))
