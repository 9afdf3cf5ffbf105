"""Errors: one tree, stable and distinct codes, and all the facts in text and in JSON."""

from __future__ import annotations

import inspect
import json
import re
from functools import partial

import pytest

from kernelyard import errors
from kernelyard.dtypes import UnknownDtypeError
from kernelyard.errors import KernelyardError, PerformanceWarning, warn_caller

EXCEPTIONS = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]
CLASSES = [c for c in EXCEPTIONS if not issubclass(c, Warning)] + [UnknownDtypeError]


@pytest.mark.parametrize("error_class", CLASSES, ids=lambda c: c.__name__)
def test_every_error_is_in_the_tree_with_a_code_and_a_docstring(error_class):
    assert issubclass(error_class, KernelyardError)
    assert re.fullmatch(r"KY\d{3}", error_class.code)
    assert error_class.__doc__


def test_codes_are_distinct():
    codes = [error_class.code for error_class in CLASSES]
    assert len(set(codes)) == len(codes)


def test_text_has_every_part_that_was_given():
    text = str(KernelyardError("it broke", where="node 'a'", found=3, expected="4", hint="mend it"))
    assert text.splitlines() == [
        "[KY000] it broke",
        "  where: node 'a'",
        "  found: 3",
        "  expected: 4",
        "  how to go on: mend it",
    ]


def test_parts_that_were_not_given_are_left_out():
    assert str(KernelyardError("it broke")) == "[KY000] it broke"


def test_zero_is_a_fact_too():
    assert "found: 0" in str(KernelyardError("it broke", found=0))


def test_json_has_the_same_facts():
    error = errors.ShapeError("sizes differ", where="axis 1", found=(2, 3), expected=None, hint="pad")
    assert json.loads(json.dumps(error.to_json())) == {
        "code": "KY110",
        "error": "ShapeError",
        "message": "sizes differ",
        "where": "axis 1",
        "found": "(2, 3)",
        "expected": None,
        "hint": "pad",
    }


def in_module(name, function):
    """A function that calls another, as one of the module of that name would."""
    names = {"__name__": name, "called": function}
    exec(compile("def call(): called()", name, "exec"), names)
    return names["call"]


def test_a_warning_is_about_the_line_that_calls_kernelyard():
    called = partial(warn_caller, "it is slow", PerformanceWarning)
    for module in (
        "kernelyard.driver",
        "torch._dynamo.eval_frame",
        "contextlib",
        "kernelyard_acme.runtime",
        "kernelyard",
    ):
        called = in_module(module, called)
        with pytest.warns(PerformanceWarning, match="it is slow") as caught:
            called()
        assert caught[0].filename == __file__
    with pytest.warns(PerformanceWarning) as caught:
        in_module("kernelyardstick", called)()  # a user's package
    assert caught[0].filename == "kernelyardstick"
