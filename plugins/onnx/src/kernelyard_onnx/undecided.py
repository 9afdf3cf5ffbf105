"""The error of a model that is refused only because the values of some inputs decide what the program is."""

from __future__ import annotations

from typing import Any

from kernelyard.errors import UnsupportedOperatorError


class UndecidedInputsError(UnsupportedOperatorError):
    """The values of some inputs must be known when the model is compiled; `inputs` names them."""

    code = "KY405"

    def __init__(self, message: str, *, inputs: frozenset[str], **parts: Any) -> None:
        super().__init__(message, **parts)
        self.inputs = inputs
