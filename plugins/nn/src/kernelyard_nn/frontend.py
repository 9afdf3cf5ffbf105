"""NnFrontend: take models written with `kernelyard.nn`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kernelyard.errors import UnknownModelError
from kernelyard.plugins.api import Frontend, IRModule


class NnFrontend(Frontend):
    """Trace the methods of an `nn.ModuleSpec`; each becomes an entry function."""

    name = "nn"

    def accepts(self, model: object) -> bool:
        """Return True for an `nn.ModuleSpec`, and for a bare `nn.Module` in order to say what it lacks."""
        nn = sys.modules.get("kernelyard.nn")  # whoever holds a module has imported it
        return nn is not None and isinstance(model, (nn.ModuleSpec, nn.Module))

    def import_model(self, model: object, options: Mapping[str, Any]) -> IRModule:
        """Trace a spec into a module with one function for each of its methods.

        Raises: UnknownModelError for a module without a spec, FrontendError and ToolchainError as `ModuleSpec.to_ir`.
        """
        from kernelyard.nn import ModuleSpec

        if isinstance(model, ModuleSpec):
            return model.to_ir()
        raise UnknownModelError(
            "this module has no spec of its inputs",
            found=type(model).__name__,
            expected="the module with a spec",
            hint='nn.ModuleSpec(module, {"forward": {"x": nn.spec.Tensor(["n", 784], "float32")}})',
        )
