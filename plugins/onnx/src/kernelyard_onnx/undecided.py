"""The errors of what is refused only because data decides what the program is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelyard.errors import UnsupportedOperatorError
from kernelyard.plugins.api import Problem, RejectedError


class UndecidedInputsError(UnsupportedOperatorError):
    """The values of some inputs must be known when the model is compiled; `inputs` names them.

    tensors: those of the model's graph whose values decide all that is refused, where that is known.
    """

    code = "KY405"

    def __init__(
        self, message: str, *, inputs: frozenset[str], tensors: frozenset[str] = frozenset(), **parts: Any
    ) -> None:
        super().__init__(message, **parts)
        self.inputs = inputs
        self.tensors = tensors


class UndecidedNodeError(RejectedError):
    """A node needs values that are not known. Never leaves the importer.

    inputs: those of the model that they are computed from. tensors: the names of these values in the model's graph.
    """

    def __init__(self, reason: str, inputs: frozenset[str], tensors: frozenset[str]) -> None:
        super().__init__(reason, inputs)
        self.tensors = tensors


@dataclass(frozen=True)
class UndecidedProblem(Problem):
    """A node that needs values that are not known. tensors: as of `UndecidedNodeError`."""

    tensors: frozenset[str] = frozenset()
