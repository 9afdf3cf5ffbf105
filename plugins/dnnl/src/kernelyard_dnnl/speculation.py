"""Speculative lowering: a graph is lowered for new sizes by the answers that oneDNN gave at earlier ones.

A lowering mostly asks the library in order to compare: with post-ops or without, the first implementation or the next.
Each question takes a tenth of a millisecond to ten, and the answers are nearly always the same at other sizes. So the
earlier answers are assumed. Of the primitives that are left, the library is asked: a node with one that is not as
assumed is lowered again. Where asking takes milliseconds, it is done beside the lowering, and all is lowered again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kernelyard.runtime.api import NamedTuple, cached_property
from kernelyard_dnnl import _enums as enums
from kernelyard_dnnl._native import Handle, StatusError
from kernelyard_dnnl.layout import MemoryDescriptor
from kernelyard_dnnl.primitive import SLOW_TO_DESCRIBE, Primitive, Recipe, primitive_of
from kernelyard_dnnl.work import fitting_threads

Result = TypeVar("Result")
# Layouts of constants, whose shapes are those of other sizes: what to ask the library for, by attribute.
WEIGHTS = {
    "weights": ("weights_md", 0),
    "depthwise_weights": ("exec_arg_md", enums.ARG["depthwise"] | enums.ARG["weights"]),
}
ASSUMED = ("implementation", *WEIGHTS)


class _Question(NamedTuple):
    """Name a question by what is the same at all sizes."""

    kind: str
    skipped: int
    post_ops: int


class _Answer(NamedTuple):
    """A refusal, the call and its status; or what was made use of: the implementation's name and layouts of weights, by
    attribute."""

    refusal: tuple[str, int] | None = None
    known: Mapping[str, str | MemoryDescriptor] = {}


class WrongAssumptionError(Exception):
    """A primitive is not as assumed: its node is to be lowered again, which asks the library about it."""


class SpeculativePrimitive(Primitive):
    """Stands for a primitive, and answers what is known of that at other sizes; for all else the library is asked.

    asked: the node that asked for it, and the number of its question. answer: what is known.
    """

    def __init__(self, recipe: Recipe, threads: int, asked: tuple[int, int], answer: _Answer) -> None:
        self.recipe = recipe
        self.threads = threads
        self.asked = asked
        self.answer = answer
        self.__dict__.update(answer.known)  # where cached properties keep their values

    @cached_property
    def actual(self) -> Primitive:
        """The primitive itself."""
        return primitive_of(self.recipe, self.threads)

    @property
    def descriptor(self) -> Handle:
        return self.actual.descriptor

    @property
    def handle(self) -> Handle:
        return self.actual.handle

    @property
    def is_generated(self) -> bool:
        return self.actual.is_generated

    def generate(self) -> Handle:
        return self.actual.generate()

    @property
    def is_as_assumed(self) -> bool:
        """True if the library answers what was assumed."""
        try:
            self.actual.describe()
        except StatusError:
            return False
        return all(
            self.actual.implementation == value if isinstance(value, str) else self._has_layout(name, value)
            for name, value in self.answer.known.items()
        )

    def _has_layout(self, name: str, layout: MemoryDescriptor) -> bool:
        return self.actual.has_layout(*WEIGHTS[name], layout)


class Speculation:
    """The questions that the lowering of a graph asks, by node and number, with the answers; afterwards, those to
    assume at the next sizes.

    What was assumed wrongly once is asked at all sizes from then on.
    earlier: the lowering for other sizes; None to ask the library each time.
    """

    def __init__(self, earlier: Speculation | None = None) -> None:
        self._earlier = earlier._answers if earlier is not None else {}
        self._varying: set[tuple[int, int]] = earlier._varying if earlier is not None else set()
        self._answers: dict[tuple[int, int], tuple[_Question, _Answer]] = {}
        self._asked: dict[tuple[int, int], tuple[_Question, Primitive | tuple[str, int]]] = {}
        self._counts: Counter[int] = Counter()
        self._unchecked: list[SpeculativePrimitive] = []

    def begin_node(self, node: int) -> None:
        """Count the questions of a node anew."""
        self._counts[node] = 0

    def primitive(self, node: int, recipe: Recipe, threads: int) -> Primitive:
        """Return the primitive of a recipe, as far as that is assumed, for at most so many threads.

        Raises: StatusError.
        """
        threads = fitting_threads(recipe.kind, recipe.arguments, threads)
        key = node, self._counts[node]
        question = _Question(recipe.kind, recipe.skipped, len(recipe.post_ops))
        self._counts[node] += 1
        earlier, answer = (None, _Answer()) if key in self._varying else self._earlier.get(key, (None, _Answer()))
        try:
            if earlier != question:
                found = primitive_of(recipe, threads)
                found.describe()
            elif answer.refusal is not None:
                raise StatusError(*answer.refusal)
            else:
                found = SpeculativePrimitive(recipe, threads, key, answer)
        except StatusError as error:
            self._asked[key] = question, error.call
            raise
        self._asked[key] = question, found
        return found

    def reorder(self, recipe: Recipe, threads: int) -> Primitive:
        """Return the primitive of a copy, of which nothing is assumed. Raises: StatusError."""
        found = primitive_of(recipe, fitting_threads(recipe.kind, recipe.arguments, threads))
        found.describe()
        return found

    def decide(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function decides about sizes."""
        return function(*arguments)

    def defer(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function makes for sizes."""
        return function(*arguments)

    def keep(self) -> Speculation:
        """Make the answers those to assume, and let go of all else."""
        self._answers = {
            key: (question, _answer(found))
            for key, (question, found) in self._asked.items()
            if key not in self._varying
        }
        self._asked, self._earlier, self._unchecked = {}, {}, []
        return self

    def blind(self) -> Speculation:
        """Return one that asks the library each time, and knows what varies."""
        found = Speculation()
        found._varying = self._varying
        return found

    def rely_on(self, primitive: Primitive) -> Primitive:
        """Return the primitive itself for one that will be run. Raises: WrongAssumptionError."""
        if not isinstance(primitive, SpeculativePrimitive):
            return primitive
        if primitive.recipe.kind in SLOW_TO_DESCRIBE:
            self._unchecked.append(primitive)
        elif not primitive.is_as_assumed:
            self._varying.add(primitive.asked)
            raise WrongAssumptionError
        return primitive.actual

    def has_held(self) -> bool:
        """Tell if the primitives that `rely_on` did not check are as assumed."""
        wrong = [primitive.asked for primitive in self._unchecked if not primitive.is_as_assumed]
        self._varying.update(wrong)
        return not wrong


def _answer(found: Primitive | tuple[str, int]) -> _Answer:
    if isinstance(found, tuple):
        return _Answer(found)
    layouts, known = found.recipe.arguments, vars(found)
    names = [name for name in ASSUMED if name in known]
    if isinstance(found, SpeculativePrimitive) and len(names) == len(found.answer.known):
        return found.answer  # nothing else was asked
    names = [name for name in names if not any(known[name] is each for each in layouts)]
    return _Answer(None, {name: known[name] for name in names})
