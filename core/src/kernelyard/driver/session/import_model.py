"""From whatever the user has to an IRModule, through the first installed frontend that takes it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelyard.dims import Bounds
from kernelyard.errors import (
    FrontendError,
    IRError,
    KernelyardError,
    PluginContractError,
    PluginError,
    UnknownModelError,
)
from kernelyard.ir import IRModule
from kernelyard.ir.hash_ahead import hash_ahead
from kernelyard.ir.size_bounds import with_bounds
from kernelyard.ir.verify import verify
from kernelyard.plugins.discovery.manager import PluginManager
from kernelyard.plugins.interfaces.frontend import Frontend
from kernelyard.plugins.sandbox.guard import run_guarded
from kernelyard.runtime.installed.distributions import package_line

log = logging.getLogger(__name__)


def import_model(
    manager: PluginManager,
    model: object,
    options: Mapping[str, Mapping[str, Any]],
    bounds: Mapping[str, Bounds] = MappingProxyType({}),
) -> IRModule:
    """Import a model as a verified module that has at least one entry function.

    bounds: of symbolic sizes of its inputs.
    Raises: OptionError for bounds of no symbol, FrontendError when there is no such file, UnknownModelError with the
    pip line when no frontend takes the model, IRError when there is nothing to compile, what the frontend raises.
    """
    if isinstance(model, (str, os.PathLike)) and not os.path.exists(model):  # also False for what can be no path
        raise FrontendError("there is no such model file", where=str(model))
    if isinstance(model, IRModule):
        module = model
        verify(module)
    else:
        frontend = frontend_for(manager, model)
        module = _read(frontend, manager.label_of(frontend.name), model, options.get(frontend.name, {}))
    if not module.public_functions():
        raise IRError("the module has no function to compile", expected='a function, usually called "main"')
    hash_ahead(module)
    return with_bounds(module, bounds)


def frontend_for(manager: PluginManager, model: object) -> Frontend:
    """Return the first installed frontend that reads a model. Raises: UnknownModelError."""
    asked: list[str] = []
    for frontend in manager.frontends(model):
        asked.append(frontend.name)
        label = manager.label_of(frontend.name)
        try:
            if run_guarded(f"asking {label} whether it reads this model", lambda f=frontend: f.accepts(model)):
                return frontend
        except PluginError:  # one broken frontend must not keep the others from reading the model
            log.warning("%s failed when it was asked whether it reads this model", label, exc_info=True)
    raise _unknown_model(model, asked)


_PACKAGES = {"pt2": "torch"}  # that read files of a suffix, where they are called otherwise
_COMPILED = "it is compiled already: kernelyard.load(path), or `kernelyard run`"


def _unknown_model(model: object, frontends: Sequence[str]) -> UnknownModelError:
    is_path = isinstance(model, (str, os.PathLike))
    if is_path and Path(model).is_dir():
        return UnknownModelError("this is a folder, no model that an installed frontend reads", where=str(model))
    suffix = Path(model).suffix.lstrip(".").lower() if is_path else ""
    missing = "" if suffix in frontends else _PACKAGES.get(suffix, suffix)
    hint = _COMPILED if suffix == "kyar" else package_line(missing)
    return UnknownModelError(
        "no installed frontend reads this model",
        found=str(model) if is_path else f"an object of type {type(model).__name__}",
        expected=f"a model for {', '.join(frontends)}" if frontends else "no frontend is installed",
        hint=hint or "give a path, the bytes of a file, a model object that a frontend knows, or an IRModule",
    )


def _read(frontend: Frontend, label: str, model: object, options: Mapping[str, Any]) -> IRModule:
    """Import the model with the frontend; other errors than KernelyardErrors, and results that are no well-formed
    modules, are reported as the plugin's fault."""
    try:
        module = frontend.import_model(model, options)
    except KernelyardError:
        raise
    except (Exception, SystemExit) as error:  # a vendor's code
        raise _contract_error(label, f"raised {type(error).__name__}: {error}") from error
    if not isinstance(module, IRModule):
        raise _contract_error(label, f"returned {type(module).__name__}, no IRModule")
    try:
        verify(module)
    except KernelyardError as error:
        raise _contract_error(label, f"made a malformed module: {error}") from error
    return module


def _contract_error(label: str, problem: str) -> PluginContractError:
    return PluginContractError(
        f"the frontend {problem}", where=label, hint="report this to the plugin's authors, with the model"
    )
