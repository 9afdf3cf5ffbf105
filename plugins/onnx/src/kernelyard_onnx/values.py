"""What a name of a model can stand for: a tensor, a sequence of tensors, or an optional that holds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kernelyard.ir import Expr


@dataclass(frozen=True)
class TensorSequence:
    """A sequence whose length is known when the model is compiled."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Nothing:
    """An optional without a value."""


Value: TypeAlias = "Expr | TensorSequence | Nothing"
