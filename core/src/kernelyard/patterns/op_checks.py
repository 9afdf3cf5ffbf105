"""Checks of what a pattern says of operators against the vocabulary: what no operator has, nothing can match."""

from __future__ import annotations

from collections.abc import Iterable

from kernelyard.errors import PatternError
from kernelyard.ir.op import Op, get_op


def check_operand_count(ops: Iterable[str], count: int, varargs: bool) -> None:
    """Raise a PatternError where none of the operators has so many operands, or with `varargs` more."""
    known = [get_op(op) for op in ops]
    if not any(_may_have(op, count, varargs) for op in known):
        raise PatternError(
            f"no call of {'/'.join(op.name for op in known)} has that many operands",
            found=count,
            expected=", ".join(f"{op.arity_text} of {op.name}" for op in known),
            hint=None if varargs else "varargs=True leaves further operands free",
        )


def _may_have(op: Op, count: int, varargs: bool) -> bool:
    least, most = op.arity
    return (varargs or count >= least) and (most is None or count <= most)


def check_attributes(ops: Iterable[str], names: Iterable[str]) -> None:
    """Raise a PatternError for an attribute that none of the operators has."""
    known = [get_op(op) for op in sorted(ops)]
    attributes = {name for op in known for name in op.attributes}
    for name in names:
        if name not in attributes:
            raise PatternError(
                f"no call that this pattern matches has an attribute {name!r}",
                found=", ".join(op.name for op in known),
                expected=", ".join(sorted(attributes)) or "no attributes",
            )
