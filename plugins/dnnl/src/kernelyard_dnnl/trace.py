"""Trace the lowering of a graph: what it does with sizes, as straight-line code that makes plans for other sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from kernelyard.dims import Dim
from kernelyard.runtime.api import DimValues, cached_property
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl.layout import MemoryDescriptor, Shape, dense
from kernelyard_dnnl.primitive import Primitive, Recipe
from kernelyard_dnnl.primitive_attributes import Depthwise
from kernelyard_dnnl.speculation import Speculation
from kernelyard_dnnl.traced import NotTraceableError, Tape, decide, defer, tape_of, value_of

Result = TypeVar("Result")


class TracedSizes(DimValues):
    """Values of dims as traced numbers."""

    def __init__(self, tape: Tape, values: Mapping[str, int]) -> None:
        super().__init__(values)
        self._tape = tape

    def __call__(self, dim: Dim) -> int:
        """Return the value of a dim. Raises: ShapeError."""
        value = super().__call__(dim)
        return value if isinstance(dim, int) else cast("int", self._tape.leaf(dim, value))


class TracedPrimitive(Primitive):
    """Stands for a primitive whose recipe has traced sizes; what the library chooses is asked of the actual one.

    chosen: the arguments, by their numbers, whose layouts the library chose, each with what to ask it for.
    """

    def __init__(self, recipe: Recipe, actual: Primitive) -> None:
        self.recipe = recipe
        self.threads = actual.threads
        self.actual = actual

    @property
    def is_generated(self) -> bool:
        return True  # there is nothing to run yet

    @property
    def chosen(self) -> dict[int, tuple[str, int]]:
        names = {"src": "src_md", "weights": "weights_md", "dst": "dst_md"}
        layouts = self._asked
        asked = {"src": layouts[0], "dst": layouts[-1], **({"weights": layouts[1]} if len(layouts) > 2 else {})}
        found = {enums.ARG[name]: (names[name], 0) for name, layout in asked.items() if layout.is_open}
        if any(isinstance(post_op, Depthwise) for post_op in self.recipe.post_ops):
            weights = enums.ARG["depthwise"] | enums.ARG["weights"]
            found |= {enums.ARG["dst"]: ("dst_md", 0), weights: ("exec_arg_md", weights)}
        return found

    @cached_property
    def implementation(self) -> str:
        return self.actual.implementation

    @cached_property
    def source(self) -> MemoryDescriptor:
        asked = self._asked[0]
        return _with_shape(self.actual.source, asked.shape) if asked.is_open else asked

    @cached_property
    def weights(self) -> MemoryDescriptor:
        asked = self._asked[1]
        return _with_shape(self.actual.weights, asked.shape) if asked.is_open else asked

    @cached_property
    def destination(self) -> MemoryDescriptor:
        asked, shape = self._asked[-1], self._asked[-1].shape
        strides = [post_op.stride for post_op in self.recipe.post_ops if isinstance(post_op, Depthwise)]
        if strides:
            shape = (*shape[:2], *((size - 1) // strides[0] + 1 for size in shape[2:]))
        return _with_shape(self.actual.destination, shape) if asked.is_open or strides else asked

    @cached_property
    def depthwise_weights(self) -> MemoryDescriptor:
        return self.actual.depthwise_weights


def _with_shape(found: MemoryDescriptor, shape: Shape) -> MemoryDescriptor:
    """Return a layout that the library chose as one of traced sizes."""
    if tape_of(shape) is None:
        return found
    if not found.is_dense:
        raise NotTraceableError("a layout with blocks or gaps whose shape depends on sizes")
    layout = dense(shape, found.dtype, found.order)
    if not value_of(layout).has_same_layout(found):
        raise NotTraceableError("a layout of another shape than it was asked for")
    return layout


class TracedSpeculation(Speculation):
    """The questions of a lowering with traced sizes, as another speculation answers them."""

    def __init__(self, answers: Speculation) -> None:
        super().__init__()
        self._of_values = answers

    def begin_node(self, node: int) -> None:
        """See `Speculation.begin_node`."""
        self._of_values.begin_node(node)

    def primitive(self, node: int, recipe: Recipe, threads: int) -> Primitive:
        """See `Speculation.primitive`."""
        return TracedPrimitive(recipe, self._of_values.primitive(node, value_of(recipe), threads))

    def reorder(self, recipe: Recipe, threads: int) -> Primitive:
        """See `Speculation.reorder`."""
        return TracedPrimitive(recipe, self._of_values.reorder(value_of(recipe), threads))

    def rely_on(self, primitive: Primitive) -> Primitive:
        """See `Speculation.rely_on`."""
        assert isinstance(primitive, TracedPrimitive)
        primitive.actual = self._of_values.rely_on(primitive.actual)
        return primitive

    def decide(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """See `Speculation.decide`."""
        return decide(function, *arguments)

    def defer(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """See `Speculation.defer`."""
        return defer(function, *arguments)
