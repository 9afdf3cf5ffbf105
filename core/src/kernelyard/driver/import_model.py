"""From whatever the user has to an IRModule, through the first installed frontend that takes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelyard.errors import FrontendError, PluginContractError, UnknownModelError
from kernelyard.ir import IRModule
from kernelyard.ir.verify import verify
from kernelyard.plugins.frontend import Frontend
from kernelyard.plugins.guard import guarded
from kernelyard.plugins.manager import get_manager


def import_model(model: object, options: Mapping[str, Mapping[str, Any]]) -> IRModule:
    """The model as a verified module.

    Raises: UnknownModelError with the pip line when no frontend takes it, and what the frontend raises.
    """
    if isinstance(model, IRModule):
        verify(model)
        return model
    if isinstance(model, (str, os.PathLike)) and not Path(model).is_file():
        raise FrontendError("there is no such model file", where=str(model))
    frontend = _frontend_for(model)
    module = frontend.import_model(model, options.get(frontend.name, {}))
    if not isinstance(module, IRModule):
        raise PluginContractError(
            f"the frontend {frontend.name!r} returned no IRModule",
            where=get_manager().label_of(frontend.name),
            found=type(module).__name__,
        )
    verify(module)
    return module


def _frontend_for(model: object) -> Frontend:
    frontends: list[Frontend] = get_manager().active("frontend")
    for frontend in frontends:
        if guarded(f"asking {get_manager().label_of(frontend.name)}", lambda f=frontend: f.accepts(model)):
            return frontend
    found = str(model) if isinstance(model, (str, os.PathLike)) else type(model).__name__
    suffix = Path(model).suffix.lstrip(".") if isinstance(model, (str, os.PathLike)) else ""
    raise UnknownModelError(
        "no installed frontend takes this model",
        found=found,
        expected=", ".join(frontend.name for frontend in frontends) or "no frontend is installed",
        hint=f"pip install kernelyard-{suffix}" if suffix and suffix not in {f.name for f in frontends} else None,
    )
