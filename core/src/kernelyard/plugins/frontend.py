"""Frontend: reads models of one format into an IRModule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from kernelyard.ir import IRModule


class Frontend(ABC):
    """Reads one model format; the manifest's `suffixes` and `types` say which files and objects that may be.

    The module has a function "main" whose attributes "input_names" and "output_names" are the model's own names, and a
    module attribute "metadata" with the model's own strings.
    """

    name: str

    @abstractmethod
    def accepts(self, model: object) -> bool:
        """Return True for models of this format; must be cheap and must not raise."""

    @abstractmethod
    def import_model(self, model: object, options: Mapping[str, Any]) -> IRModule:
        """Read a model.

        Raises: ModelFormatError, UnsupportedOperatorError, ExternalDataError.
        """
