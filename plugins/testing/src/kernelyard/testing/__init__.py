"""Test backends: the reference, assertions about offloads and numbers, samples of every operator.

`strategies` has random modules for hypothesis, `conformance` is the kit that pytest runs by this package's name.
"""

from kernelyard.driver.compile import offered_module
from kernelyard.testing.assertions import assert_allclose, assert_declined, assert_offloaded, relative_error
from kernelyard.testing.comparison import StepError, compare_executables
from kernelyard.testing.op_cases import OpCase, assert_conforms, op_cases
from kernelyard.testing.reference import assert_same_meaning, evaluate

__all__ = [
    "OpCase",
    "StepError",
    "assert_allclose",
    "assert_conforms",
    "assert_declined",
    "assert_offloaded",
    "assert_same_meaning",
    "compare_executables",
    "evaluate",
    "offered_module",
    "op_cases",
    "relative_error",
]
