"""Get a program of torch.export from what people have: a program, a `.pt2` file, or an nn.Module."""

from __future__ import annotations

import importlib
import os
import threading
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive import constants
from torch.utils import _pytree as pytree

from kernelyard.errors import FrontendError, ModelFormatError, UnsupportedOperatorError

_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_environment_lock = threading.Lock()
# Members of an archive that PyTorch would load by running them: libraries, and pickles of arbitrary objects.
# PyTorch 2.11 has no opaque ones yet.
_KINDS_RUN = ("AOTINDUCTOR_DIR", "CUSTOM_OBJ_FILENAME_PREFIX", "OPAQUE_OBJ_FILENAME_PREFIX")
_RUN_WHEN_LOADED: tuple[str, ...] = tuple(getattr(constants, kind) for kind in _KINDS_RUN if hasattr(constants, kind))

_QUANTIZED = b"torch.ops.quantized_decomposed."


def export_program(model: object, options: Mapping[str, Any]) -> ExportedProgram:
    """Return a model as a program of torch.export.

    model: an ExportedProgram, the path of a `.pt2` file, or an nn.Module, which is exported as in evaluation mode for
    the option `example_inputs` and, where sizes stay open, `dynamic_shapes`.
    Raises: ModelFormatError for a damaged file, UnsupportedOperatorError for a module that torch.export refuses,
    FrontendError for a module without example inputs, and for these options with another kind of model.
    """
    if isinstance(model, torch.nn.Module):
        return _export(model, options)
    given = sorted({"example_inputs", "dynamic_shapes"} & set(options))
    if given:
        raise FrontendError(
            f"the option {given[0]} is for an nn.Module",
            found="a program that is exported already",
            hint="pass it to torch.export.export, which makes the program",
        )
    if isinstance(model, ExportedProgram):
        return model
    assert isinstance(model, (str, os.PathLike))  # the frontend takes nothing else
    return read_pt2(os.fsdecode(model))


def read_pt2(path: str) -> ExportedProgram:
    """Load a file of torch.export.save. Pickles of anything but tensors are refused.

    Raises: ModelFormatError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelFormatError("this is no .pt2 archive", where=path, found=str(error)) from error
    unsafe = next((name for name in names if any(part in name for part in _RUN_WHEN_LOADED)), None)
    if unsafe is not None:
        raise ModelFormatError(
            "the archive has a member that runs code when it is loaded",
            where=path,
            found=unsafe,
            expected="a program and its tensors, as torch.export.save writes them",
        )
    try:
        with _tensors_alone(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of its own classes
            _declare_operators(path)
            return torch.export.load(path)
    except Exception as error:  # whatever PyTorch stumbles over in a damaged file
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelFormatError("PyTorch cannot load this program", where=path, found=problem) from error


def _declare_operators(path: str) -> None:
    """Import the module of PyTorch that declares the operators of a quantized program, if the archive names them."""
    with zipfile.ZipFile(path) as archive:
        programs = [name for name in archive.namelist() if name.endswith(".json")]
        if any(_QUANTIZED in archive.read(name) for name in programs):
            importlib.import_module("torch.ao.quantization.fx._decomposed")


@contextmanager
def _tensors_alone() -> Iterator[None]:
    """Let torch.load unpickle tensors and containers alone, whatever its callers ask for."""
    with _environment_lock:
        before = os.environ.get(_WEIGHTS_ONLY)
        os.environ[_WEIGHTS_ONLY] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_WEIGHTS_ONLY]
            else:
                os.environ[_WEIGHTS_ONLY] = before


def _export(module: torch.nn.Module, options: Mapping[str, Any]) -> ExportedProgram:
    if "example_inputs" not in options:
        raise FrontendError(
            "an nn.Module is exported for example inputs",
            found=f"{type(module).__name__} alone",
            hint='options={"torch": {"example_inputs": (x,)}}; "dynamic_shapes" as torch.export.export takes it',
        )
    arguments, keywords = _call(options["example_inputs"])
    try:
        with _evaluating(module), torch.no_grad():
            return torch.export.export(module, arguments, keywords, dynamic_shapes=options.get("dynamic_shapes"))
    except Exception as error:  # torch.export raises what the module raises, and a dozen classes of its own
        raise UnsupportedOperatorError(
            "torch.export cannot export the module",
            where=type(module).__name__,
            found=f"{type(error).__name__}: {error}".splitlines()[0],
            hint='torch.compile(module, backend="kernelyard") runs what it can, and leaves the rest to PyTorch',
        ) from error


def _call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional arguments and keywords: of a tensor, of a tuple, of a mapping by name.

    A tensor that is given twice is copied: torch.export takes two arguments for one that are the same object.
    """
    seen: set[int] = set()

    def single(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in seen:
            seen.add(id(value))
            return value
        return value.clone()

    own = pytree.tree_map(single, example)
    if isinstance(own, Mapping):
        return (), dict(own)
    return (tuple(own) if isinstance(own, (tuple, list)) else (own,)), {}


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put a module and its parts in evaluation mode, and each back in its own afterwards."""
    were = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in were:
            part.training = training
