"""Frontend: reads models of one format into an IRModule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelyard.ir import IRModule

if TYPE_CHECKING:
    from kernelyard.errors import FrontendError, UnsupportedOperatorError
    from kernelyard.runtime.execute.executable import TensorInfo


class Specialization(NamedTuple):
    """Name what one program of a model is compiled for. key: equal for the same. options: those of the frontend."""

    key: Hashable
    options: Mapping[str, Any]


class ModelSpecializer(ABC):
    """Says which sizes and values of its inputs a model is compiled for, where no program serves them all.

    inputs, outputs: names, shapes (texts where a size is open) and dtypes that the model declares.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    @abstractmethod
    def specialize(self, feeds: Mapping[str, Any]) -> Specialization:
        """Return what to fix for these inputs, NumPy arrays by name."""

    @abstractmethod
    def learn(self, error: FrontendError, feeds: Mapping[str, Any]) -> bool:
        """Fix more from now on, as the model was refused with what is fixed so far; False where nothing is left."""


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

    def specializer(
        self, model: object, options: Mapping[str, Any], error: UnsupportedOperatorError
    ) -> ModelSpecializer | None:
        """Return what fixes sizes and values of a refused model's inputs; None where that cannot help, as by default.

        error: what `import_model` raised.
        """
        return None

    def with_shapes(
        self, options: Mapping[str, Any], shapes: Mapping[str, Sequence[int | None]]
    ) -> Mapping[str, Any] | None:
        """Return options by which sizes of inputs are fixed as well, None for an open one; None where no option does.

        Without it, as by default, what `import_model` decided before the sizes were known stays decided.
        """
        return None
