"""What passes take for elementwise is: an element of the result changes with those at the same place alone."""

from __future__ import annotations

import numpy as np
import pytest

import kernelyard.ops  # noqa: F401  # declares the operators
from kernelyard.ir import get_op
from kernelyard.ops.elementwise_names import ELEMENTWISE
from kernelyard.ops.numeric import NARROW_FLOATS


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_each_element_is_made_of_those_at_its_place(name):
    op = get_op(name)
    seen = 0
    for sample in op.samples():
        attrs = dict(op.check_attributes(sample.attributes))
        operands = [np.asarray(operand) for operand in sample.inputs]
        if any(operand.dtype in NARROW_FLOATS for operand in operands):
            continue
        with np.errstate(all="ignore"):
            whole = op.reference(*operands, **attrs)
            assert whole.shape == np.broadcast_shapes(*(operand.shape for operand in operands))
            places = list(np.ndindex(whole.shape))
            for place in (places[0], places[-1]):
                parts = [np.broadcast_to(operand, whole.shape)[place] for operand in operands]
                np.testing.assert_array_equal(op.reference(*map(np.asarray, parts), **attrs), whole[place])
        seen += 1
    assert seen
