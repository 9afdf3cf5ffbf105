"""Values that a name of a model is bound to: a tensor, a sequence of tensors, text, or an empty optional."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kernelyard.plugins.api import Expr


@dataclass(frozen=True, eq=False)
class StringTensor:
    """Text, which is known when the model is compiled: an array of `str` objects."""

    data: np.ndarray


@dataclass(frozen=True)
class TensorSequence:
    """A sequence whose length is known when the model is compiled."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Nothing:
    """An optional without a value."""


Value: TypeAlias = "Expr | TensorSequence | StringTensor | Nothing"


def item_name(name: str, index: int) -> str:
    """Return the name of a sequence's element among the inputs and outputs of the program."""
    return f"{name}[{index}]"
