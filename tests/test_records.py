"""Records and named tuples are what `dataclass` and `typing.NamedTuple` make of the same class, to all that asks."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar
from typing import NamedTuple as TypingNamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelyard.records import NamedTuple, record


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
        (lambda: Point(), "missing 1 required positional argument: 'x'"),
        (lambda: Point(1, 2, (), [], 5), "takes from 2 to 5 positional arguments"),
        (lambda: Point(1, z=2), "unexpected keyword argument 'z'"),
        (lambda: Point(1, x=2), "multiple values for argument 'x'"),
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
    with pytest.raises(TypeError, match="unexpected keyword argument 'count'"):
        Counted((1,), count=2)


class Pair(NamedTuple):
    """A named tuple."""

    first: int
    second: str = "b"

    @property
    def both(self) -> str:
        return f"{self.first}{self.second}"


class ReferencePair(TypingNamedTuple):
    """The same of Python's library."""

    first: int
    second: str = "b"


@given(st.integers(0, 1), st.sampled_from("ab"), st.integers(1, 2))
def test_a_named_tuple_is_as_that_of_the_library(first: int, second: str, given_by_place: int) -> None:
    values = (first, second)[:given_by_place]
    named = {"second": second} if given_by_place == 1 else {}
    ours, reference = Pair(*values, **named), ReferencePair(*values, **named)
    assert ours == reference == (first, second) == (ours.first, ours.second)
    assert hash(ours) == hash(reference)
    assert repr(ours) == repr(reference).replace("ReferencePair", "Pair")
    assert ours._asdict() == reference._asdict()
    assert ours._replace(second="c") == reference._replace(second="c")
    assert Pair._make([1, "x"]) == ReferencePair._make([1, "x"])
    assert (Pair._fields, Pair._field_defaults) == (ReferencePair._fields, ReferencePair._field_defaults)
    assert str(inspect.signature(Pair)) == "(first: 'int', second: 'str' = 'b')"
    assert Pair(1).both == "1b"
    assert not hasattr(ours, "__dict__")


def test_named_tuples_are_copied_and_matched() -> None:
    pair = Pair(3)
    assert copy.copy(pair) == pickle.loads(pickle.dumps(pair)) == copy.deepcopy(pair) == pair
    assert type(pickle.loads(pickle.dumps(pair))) is Pair
    match pair:
        case Pair(first, second):
            assert (first, second) == (3, "b")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: Pair(), "missing 1 required positional argument: 'first'"),
        (lambda: Pair(1, "a", 5), "takes from 2 to 3 positional arguments"),
        (lambda: Pair(1, third=2), "unexpected keyword argument 'third'"),
        (lambda: Pair(1)._replace(third=2), "no field third"),
        (lambda: Pair._make([1]), "has 2 fields, not 1"),
    ],
)
def test_what_does_not_fit_a_named_tuple_is_refused(wrong: Callable[[], Pair], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        wrong()


def test_a_named_tuple_may_have_any_number_of_fields() -> None:
    names = [f"field{number}" for number in range(40)]
    made = type(NamedTuple)("Many", (), {"__annotations__": dict.fromkeys(names, "int"), "__module__": __name__})
    assert [getattr(made(*range(40)), name) for name in names] == list(range(40))
    none = type(NamedTuple)("Empty", (), {"__annotations__": {}, "__module__": __name__})
    assert none() == ()
