"""Schedule rules in order: the first that applies wins, and all say why."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kernelyard.errors import CodegenError
from kernelyard.tir.schedule import Declined, first_that_applies


class Made(NamedTuple):
    reason: str


def never(number: int) -> Made | Declined:
    return Declined("it is no number")


def even(number: int) -> Made | Declined:
    return Made("halves") if number % 2 == 0 else Declined(f"{number} is odd")


def always(number: int) -> Made | Declined:
    return Made("as it is")


RULES = (never, even, always)


@pytest.mark.parametrize(
    ("number", "reasons"),
    [
        (4, (("never", "it is no number"), ("even", "halves"))),
        (3, (("never", "it is no number"), ("even", "3 is odd"), ("always", "as it is"))),
    ],
)
def test_the_first_that_applies_wins(number, reasons):
    made, found = first_that_applies(RULES, number)
    assert found == reasons
    assert made.reason == reasons[-1][1]


def test_none_applies():
    with pytest.raises(CodegenError, match="no schedule rule applies") as caught:
        first_that_applies(RULES[:2], 3)
    assert caught.value.found == "never: it is no number; even: 3 is odd"
