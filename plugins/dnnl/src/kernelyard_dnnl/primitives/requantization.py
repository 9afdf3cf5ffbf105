"""Requantization: scales, zero points and the post-ops between them as one chain over the integers that are stored.

Linear functions are put off as long as they can be: one after another is one, one after a clip is one before it with
other bounds, and those at the begin become part of the scales and the bias of a product. A relu in front of a
quantization to uint8 with the zero point 0 is the cutting to the range itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from kernelyard.runtime.api import NamedTuple
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import StatusError
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.lowering import Given, Lowering, make_given_arguments
from kernelyard_dnnl.primitive import Primitive, speed
from kernelyard_dnnl.primitive_attributes import Eltwise, PostOps
from kernelyard_dnnl.primitives.affine import Affine
from kernelyard_dnnl.primitives.post_ops import Step, View, emit_with, epilogues, is_of_single_points
from kernelyard_dnnl.values import Value

WEIGHTS = enums.ARG["weights"]
TIES = 2.0**16


class Line(NamedTuple):
    """x * scale + offset."""

    scale: float = 1.0
    offset: float = 0.0

    def then(self, scale: float, offset: float) -> Line:
        """Return the line with another after it."""
        return Line(self.scale * scale, self.offset * scale + offset)

    @property
    def steps(self) -> list[Step]:
        """The post-op that computes it, none where it changes nothing."""
        return [] if self == UNCHANGED else [Step("eltwise", Eltwise("linear", self.scale, self.offset))]


UNCHANGED = Line()


class Chain(NamedTuple):
    """A line, then post-ops."""

    line: Line
    steps: list[Step]

    @property
    def all_steps(self) -> list[Step]:
        """The line as a post-op, too."""
        return [*self.line.steps, *self.steps]


def chain_of(steps: Iterable[Step], result: Affine | None, dtype: str, first: Line = UNCHANGED) -> Chain:
    """Return post-ops over integers.

    result: how the result is stored in `dtype`; None for float32. first: what comes before the post-ops.
    """
    done: list[Step] = []
    line = first
    for step in steps:
        function = step.eltwise
        if function is not None and function.algorithm == "linear":
            line = line.then(function.alpha, function.beta)
        elif step.affine is not None:
            # v + s * (q - z) is s * (v / s + q) - s * z
            scale, zero = step.affine.numbers
            sign = -1.0 if step.algorithm == "sub" else 1.0
            done += [*line.then(1 / scale, 0.0).steps, step._replace(affine=None)]
            line = Line(scale, -sign * scale * zero)
        else:
            done += [*line.steps, step]
            line = UNCHANGED
    if result is None:
        return _cut(_move_line(done, line), "")
    scale, zero = result.numbers
    if zero % 2 and _has_ties(line.scale / scale):
        chain = _move_line(done, line.then(1 / scale, 0.0))
        return Chain(chain.line, [*chain.steps, Step("eltwise", Eltwise("round")), *Line(1.0, float(zero)).steps])
    return _cut(_move_line(done, line.then(1 / scale, float(zero))), dtype)


def _has_ties(scale: float) -> bool:
    """Return True for a multiple of a power of two: integers by it often lie in the middle of two others.

    Those go to the even one, which an odd zero point must not have been added to before. Of other scales none does.
    """
    multiple = scale * TIES
    return math.isclose(multiple, round(multiple), rel_tol=1e-9)


def execute_fused(
    graph: Lowering,
    steps: list[Step],
    given: Given,
    destination: MemoryDescriptor,
    arguments: dict[int, Value],
    create: Callable[[PostOps], Primitive],
    weight: Value | None = None,
    view: View | None = None,
) -> Value | None:
    """Emit the primitive that `create` makes, with all post-ops fused; None where oneDNN has no fast code for that.

    Post-ops of their own would read what has been rounded to 8 bits. given: the numbers that the primitive is given.
    weight: of a product, is brought into the layout that the primitive chose. view: as `post_ops.execute` has it.
    """
    if weight is None and any(is_of_single_points(step, destination.shape) for step in steps):
        return None
    for epilogue in epilogues(graph, steps, destination, arguments, None, view):
        try:
            primitive = create(epilogue.post_ops)
        except StatusError:
            continue
        if speed(primitive.implementation) < 2:
            continue
        packed = {} if weight is None else {WEIGHTS: graph.reorder(weight, primitive.weights)}
        return emit_with(graph, primitive, arguments | make_given_arguments(given) | packed, epilogue, view)
    return None


def _move_line(done: list[Step], line: Line) -> Chain:
    """Move a line at the end of a chain to the front of the clips before it, and take the first line out."""
    after: list[Step] = []
    while done and line.scale > 0:
        bounds = bounds_of(done[-1])
        if bounds is None:
            break
        least, most = (bound * line.scale + line.offset for bound in bounds)
        after.insert(0, Step("eltwise", Eltwise("clip", least, most)))
        done = done[:-1]
        if done and done[-1].eltwise is not None and done[-1].eltwise.algorithm == "linear":
            line = Line(done[-1].eltwise.alpha, done[-1].eltwise.beta).then(*line)
            done = done[:-1]
    if not done:
        return Chain(line, after)
    first, rest = UNCHANGED, done
    if done[0].eltwise is not None and done[0].eltwise.algorithm == "linear":
        first, rest = Line(done[0].eltwise.alpha, done[0].eltwise.beta), done[1:]
    return Chain(first, [*rest, *line.steps, *after])


def bounds_of(step: Step) -> tuple[float, float] | None:
    """Return the bounds of a clip or relu; None for others."""
    function = step.eltwise
    if function is None:
        return None
    if function.algorithm == "clip":
        return function.alpha, function.beta
    return (0.0, math.inf) if function.algorithm == "relu" and function.alpha == 0 else None


def _cut(chain: Chain, dtype: str) -> Chain:
    """Return the chain without clips at its end that cut no more than storing in `dtype` does."""
    steps = list(chain.steps)
    while dtype and steps:
        bounds, limits = bounds_of(steps[-1]), np.iinfo(dtype)
        if bounds is None or bounds[0] > limits.min or bounds[1] < limits.max:
            break
        steps.pop()
    return Chain(chain.line, steps)
