"""Values that a name of a model is bound to: a tensor, a sequence of tensors, text, maps, or an empty optional."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kernelyard.plugins.api import Expr


@dataclass(frozen=True, eq=False)
class StringTensor:
    """Text, which is known when the model is compiled: an array of `str` objects."""

    data: np.ndarray


@dataclass(frozen=True, eq=False)
class LookedUpText:
    """Text that the program chooses: entries of a table of `str` objects, at int64 indices.

    An entry of None stands for all texts that the table does not have: it is no result of a model.
    """

    indices: Expr
    table: np.ndarray

    @property
    def is_known(self) -> bool:
        """False where an entry may stand for a text that is not known."""
        return not any(entry is None for entry in self.table)

    def map(self, function: Callable[[str | None], object]) -> np.ndarray:
        """Return what a function makes of each entry."""
        return np.array([function(entry) for entry in self.table])


@dataclass(frozen=True, eq=False)
class Maps:
    """A map for each row of a tensor (N, keys), from the same keys."""

    keys: tuple[int | str, ...]
    tensor: Expr


@dataclass(frozen=True)
class TensorSequence:
    """A sequence whose length is known when the model is compiled."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Nothing:
    """An optional without a value."""


Value: TypeAlias = "Expr | TensorSequence | StringTensor | LookedUpText | Maps | Nothing"


def item_name(name: str, index: int) -> str:
    """Return the name of a sequence's element among the inputs and outputs of the program."""
    return f"{name}[{index}]"
