"""Functions of one number: square roots, reciprocals, powers and logarithms of two, sine. Source: PTX ISA 9.7.3, 9.7.4.

What GPUs approximate is computed exactly, and rounded once: tests compare with tolerances.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptx.block import Block
from ptx.parser import Instruction
from ptx.scalars import PACKED, rounded

from .arithmetic import finish, operands, rounding_of, wide

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def function(block: Block, it: Instruction) -> None:
    (x,) = operands(block, it)
    exact = FUNCTIONS[it.opcode](wide(x))
    finish(block, it, rounded(exact, PACKED.get(it.type, it.type), rounding_of(it)))


def copysign(block: Block, it: Instruction) -> None:
    """The sign is that of the first operand."""
    sign, x = operands(block, it)
    block.write(it.operands[0], np.copysign(x, sign), it.type)


def test_property(block: Block, it: Instruction) -> None:
    x = block.read(it.operands[1], it.type)
    tests = {"finite": np.isfinite, "infinite": np.isinf, "number": lambda x: ~np.isnan(x), "notanumber": np.isnan}
    block.write(it.operands[0], tests[it.modifiers[0]](x), "pred")


HANDLERS = {**dict.fromkeys(FUNCTIONS, function), "copysign": copysign, "testp": test_property}
