"""Records are what `dataclass` makes of the same class, to all that asks."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard.records import record


@record
class Point:
    """A record."""

    x: int
    y: int = 0
    names: tuple[str, ...] = ()
    unhashed: list[int] = field(default_factory=list, hash=False)
    unit: ClassVar[str] = "m"

    @cached_property
    def double(self) -> int:
        return 2 * self.x


@dataclass(frozen=True)
class Reference:
    """The same by dataclass."""

    x: int
    y: int = 0
    names: tuple[str, ...] = ()
    unhashed: list[int] = field(default_factory=list, hash=False)
    unit: ClassVar[str] = "m"


VALUES = st.tuples(st.integers(0, 1), st.integers(0, 1), st.sampled_from([(), ("a",)]), st.lists(st.integers(0, 1)))


@given(VALUES, VALUES, st.integers(1, 4))
def test_a_record_is_as_its_dataclass(first: Any, second: Any, given_by_place: int) -> None:
    names = [each.name for each in fields(Reference)][given_by_place:]
    points, references = (
        [
            kind(*values[:given_by_place], **dict(zip(names, values[given_by_place:], strict=True)))
            for values in (first, second)
        ]
        for kind in (Point, Reference)
    )
    assert (points[0] == points[1]) == (references[0] == references[1])
    assert [hash(point) for point in points] == [hash(reference) for reference in references]
    assert repr(points[0]).removeprefix("Point") == repr(references[0]).removeprefix("Reference")
    assert asdict(points[0]) == asdict(references[0])
    assert asdict(replace(points[0], y=7)) == asdict(replace(references[0], y=7))


def test_its_signature_and_parts_are_those_of_the_dataclass() -> None:
    assert str(inspect.signature(Point)) == str(inspect.signature(Reference))
    assert Point.__match_args__ == Reference.__match_args__
    assert Point(1).unhashed is not Point(1).unhashed
    match Point(3, 4):
        case Point(x, y):
            assert (x, y) == (3, 4)


def test_copies_and_pickles() -> None:
    point = Point(2, names=("a",))
    assert point.double == 4
    assert copy.copy(point) == pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == point


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: Point(), "lacks x"),
        (lambda: Point(1, 2, (), [], 5), "does not take 5 values"),
        (lambda: Point(1, z=2), "does not take z"),
        (lambda: Point(1, x=2), "does not take x"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: Callable[[], Point], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        wrong()


def test_fields_do_not_change() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="cannot change field 'x' of Point"):
        point.x = 2
    with pytest.raises(FrozenInstanceError):
        del point.x


def test_records_and_dataclasses_derive_from_each_other() -> None:
    @dataclass(frozen=True)
    class Dataclass(Point):
        z: int = 1

    @record
    class Record(Reference):
        z: int = 1

    @record(eq=False)
    class ByIdentity(Point):
        z: int = 1

        def __post_init__(self) -> None:
            assert self.z

    assert Dataclass(1, 2, z=3).z == Record(1, 2, z=3).z == ByIdentity(1, 2, z=3).z == 3
    assert Record(1) == Record(1) != Record(2)
    with pytest.raises(AssertionError):
        ByIdentity(1, z=0)


def test_by_identity() -> None:
    @record(eq=False)
    class Counted:
        steps: tuple[int, ...]
        count: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "count", len(self.steps))

    first = Counted((1,))
    assert first.count == 1
    assert first != Counted((1,))
    assert len({first, Counted((1,))}) == 2
    with pytest.raises(TypeError, match="does not take count"):
        Counted((1,), count=2)
