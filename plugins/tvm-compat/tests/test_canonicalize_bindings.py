"""Bindings that only rename."""

from __future__ import annotations

from hypothesis import given, settings

from kernelyard.ir import Tuple, verify
from kernelyard.testing.reference import assert_same_meaning
from kernelyard.testing.strategies import modules
from kernelyard_tvm_compat.canonicalize_bindings import CanonicalizeBindings


def test_names_of_names_go(check):
    function = check.of(lambda b, x: b.op("tanh", b.bind(b.bind(b.op("exp", b.bind(x))))))
    assert check.ops(check(CanonicalizeBindings(), function)) == ["exp", "tanh"]
    assert len(check(CanonicalizeBindings(), function).bindings) == 2


def test_items_of_a_tuple_that_is_built_here_are_its_fields(check):
    def build(b, x):
        pair = b.tuple(b.op("exp", x), b.op("tanh", x))
        return b.op("add", b.get(pair, 1), b.get(pair, 0))

    after = check(CanonicalizeBindings(), check.of(build))
    assert after.bindings[-1].value.args == (after.bindings[1].var, after.bindings[0].var)


def test_a_tuple_put_together_again_is_the_first(check):
    def build(b, x):
        parts = b.op("split", x, axis=1, sections=(2, 4))
        again = b.tuple(b.get(parts, 0), b.get(parts, 1))
        return b.get(again, 1)

    after = check(CanonicalizeBindings(), check.of(build))
    assert not any(isinstance(binding.value, Tuple) for binding in after.bindings)


def test_swapped_or_fewer_items_are_another_tuple(check):
    def build(b, x):
        parts = b.op("split", x, axis=1, sections=(2, 2, 2))
        swapped = b.tuple(b.get(parts, 1), b.get(parts, 0), b.get(parts, 2))
        fewer = b.tuple(b.get(parts, 0), b.get(parts, 1))
        return b.op("subtract", b.get(swapped, 0), b.get(fewer, 0))

    after = check(CanonicalizeBindings(), check.of(build))
    assert sum(isinstance(binding.value, Tuple) for binding in after.bindings) == 2


@settings(max_examples=30, deadline=None)
@given(modules(symbolic=True))
def test_meaning_stays(program):
    after = verify(CanonicalizeBindings()(program.module))
    assert_same_meaning(program.module, after, program.inputs)
    assert CanonicalizeBindings()(after) is after
