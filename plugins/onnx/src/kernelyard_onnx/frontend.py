"""ONNXFrontend: what the core asks whether a model is ONNX, and to read it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelyard.plugins.api import Frontend, IRModule, ModelSpecializer

if TYPE_CHECKING:
    from kernelyard.errors import UnsupportedOperatorError


class ONNXFrontend(Frontend):
    """Reads ONNX models: a path, the bytes of a file, or an `onnx.ModelProto`.

    Options:
        shapes: fixes sizes that the model leaves open: input name -> shape (None keeps a size open).
        values: turns inputs into constants: input name -> value. What only depends on them is then decided. Tensors
            that nodes of the graph make may be given, too.
        folder: where the external weights of a model given as bytes or as a ModelProto lie.

    Example:
        >>> from onnx import TensorProto, helper
        >>> x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
        >>> y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
        >>> graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
        >>> module = ONNXFrontend().import_model(helper.make_model(graph), {})
        >>> module["main"].result_type
        Tensor[(batch, 4), float32]
    """

    name = "onnx"

    def accepts(self, model: object) -> bool:
        """Return True for paths that end in `.onnx`, for bytes and for `onnx.ModelProto`."""
        if isinstance(model, (str, os.PathLike)):
            return Path(os.fsdecode(model)).suffix.lower() == ".onnx"
        if isinstance(model, (bytes, bytearray, memoryview)):
            return True
        onnx = sys.modules.get("onnx")  # whoever holds a ModelProto has imported onnx
        return onnx is not None and isinstance(model, onnx.ModelProto)

    def import_model(self, model: object, options: Mapping[str, Any]) -> IRModule:
        """Read a model into a module with one function, "main".

        Raises: ModelFormatError, UnsupportedOperatorError (lists every unsupported node), ExternalDataError,
          FrontendError for options that make no sense.
        """
        from kernelyard_onnx.importer import import_model
        from kernelyard_onnx.model_file import read_model

        proto, files = read_model(model)
        return import_model(proto, options, files)

    def specializer(
        self, model: object, options: Mapping[str, Any], error: UnsupportedOperatorError
    ) -> ModelSpecializer | None:
        """See `Frontend.specializer`. Sizes and values that options fix are not taken from the inputs: None."""
        from kernelyard_onnx.model_file import read_model
        from kernelyard_onnx.session import session_of_part
        from kernelyard_onnx.specializer import is_valid, specializer_for

        if options.get("shapes") or options.get("values"):
            return None
        proto, files = read_model(model)
        if not is_valid(model, proto):  # a part that no run takes would hide what is wrong with it
            return None
        found = specializer_for(proto, error, files.in_folder(options.get("folder")), session_of_part)
        takes_tensors = found is not None and not found.needs_inputs and all(info.dtype for info in found.inputs)
        return found if takes_tensors else None

    def with_shapes(self, options: Mapping[str, Any], shapes: Mapping[str, Sequence[int | None]]) -> Mapping[str, Any]:
        """See `Frontend.with_shapes`. Sizes that the options fix stay fixed."""
        given = options.get("shapes", {})
        fixed = {
            name: [new if old is None else old for old, new in zip_longest(given.get(name, ()), shape)]
            for name, shape in shapes.items()
        }
        return {**options, "shapes": {**given, **fixed}}
