"""The operators that compute each element of their result from the elements at the same place of their operands."""

from __future__ import annotations

from kernelyard.ops.activation import ACTIVATIONS
from kernelyard.ops.binary import ARITHMETIC, COMPARISONS
from kernelyard.ops.elementwise import TESTS, UNARY

ELEMENTWISE = frozenset(
    (*UNARY, *TESTS, *ARITHMETIC, *COMPARISONS, *ACTIVATIONS, "astype", "clip", "logical_not", "nn.prelu", "where")
)
