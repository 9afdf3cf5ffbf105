"""Candidate: a match as the checks of the kinds of primitives see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernelyard.dims import Dim
from kernelyard.plugins.api import Call, Expr, Match, TensorType, Var, is_dequantized
from kernelyard_dnnl.composite import Composite, kind_that_made, read_composite
from kernelyard_dnnl.memory_order import infer_order
from kernelyard_dnnl.primitive_kind import Refusal


@dataclass(frozen=True)
class Candidate:
    """A group that oneDNN may take, and what stands around it."""

    match: Match

    @cached_property
    def composite(self) -> Composite:
        """The group as it reads."""
        return read_composite(self.match.bindings)

    @property
    def call(self) -> Call:
        """The call that names the primitive."""
        return self.composite.anchor

    @property
    def op_name(self) -> str:
        """The operator that names the primitive."""
        return self.call.op_name

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The operator's attributes."""
        return self.call.attrs

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The operands of the primitive, in the operator's order."""
        return self.composite.operands

    @property
    def result(self) -> TensorType:
        """The type of what the primitive makes, before anything follows."""
        return self.call.tensor_type

    @property
    def makers(self) -> list[Expr]:
        """The values bound to the operator's operands."""
        return [self.match.value_of(arg) for arg in self.call.args]

    def behind_views(self, value: Expr) -> Expr:
        """Return what the bytes of a value were made as, before they were shown in other shapes."""
        while isinstance(value, Call) and value.op_name == "reshape":
            value = self.match.value_of(value.args[0])
        return value

    @property
    def users(self) -> list[Expr]:
        """The users of the match's result."""
        return [self.match.value_of(user) for user in self.match.users(self.match.root)]

    def may_be_ours(self, value: Expr) -> bool:
        """Return True for calls of operators that oneDNN has a primitive for, and of composites of ours."""
        return kind_that_made(value, self.match) is not None

    @property
    def is_between_ours(self) -> bool:
        """Return True where oneDNN may make an operand and read the result."""
        return all(any(map(self.may_be_ours, side)) for side in (self.makers, self.users))

    def is_unmade(self, value: Expr) -> bool:
        """Return True for what the program is given."""
        return isinstance(value, Var)

    def is_dequantized(self, value: Expr) -> bool:
        """Return True for weights that a kernel would decode as it reads them."""
        return is_dequantized(value, self.match.value_of)

    def order_of(self, operand: Expr) -> tuple[int, ...] | None:
        """See `infer_order`."""
        return infer_order(self.match, operand)

    def check_known(self, what: str, *needed: Dim) -> Refusal | None:
        """Return a refusal where one of these sizes is symbolic."""
        unknown = [str(dim) for dim in needed if not isinstance(dim, int)]
        return Refusal("dynamic-shape", f"{what} must be known, found {', '.join(unknown)}") if unknown else None
