"""ModelRepository: the models and versions that are served, found in files and folders, loaded and exchanged."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias

from kernelyard.errors import KernelyardError
from kernelyard_serve.errors import (
    ModelNotReadyError,
    RequestFormatError,
    ServeSetupError,
    StoppingError,
    UnknownServedModelError,
    as_ours,
)
from kernelyard_serve.metrics import ModelMetrics
from kernelyard_serve.options import ServeOptions
from kernelyard_serve.served_model import FileStamp, ServedModel

SUFFIX = ".kyar"
READY, LOADING, UNAVAILABLE = "READY", "LOADING", "UNAVAILABLE"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,199}")

Artifacts: TypeAlias = dict[str, dict[str, Path]]
"""Artifacts by model and version."""


class IndexEntry(NamedTuple):
    """Describe one version of a model in the index; state: READY, LOADING or UNAVAILABLE, which has a reason."""

    name: str
    version: str
    state: str
    reason: str


# --- where models lie -------------------------------------------------------------------------------------------------
def find_artifacts(arguments: Iterable[str]) -> Artifacts:
    """Return the artifacts that arguments name: `x.kyar`, a folder MODEL/VERSION/x.kyar, a folder of such folders.

    `NAME=PATH` gives the first two another name. Raises: ServeSetupError.
    """
    found: Artifacts = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        path = Path(path if equals else argument)
        for model, versions in _find_in(path, name if equals else None).items():
            if not _NAME.fullmatch(model):
                raise ServeSetupError("a model cannot have this name", found=repr(model), hint="name it: NAME=PATH")
            if model in found:
                raise ServeSetupError("two models have one name", found=model, where=argument, hint="NAME=PATH")
            found[model] = versions
    return found


def _find_in(path: Path, name: str | None) -> Artifacts:
    if path.is_file():
        return {name or path.stem: {"1": path}}
    if not path.is_dir():
        raise ServeSetupError("there is no such model", where=str(path), expected=f"a {SUFFIX} file, or a folder")
    versions = _versions(path)
    if versions:
        return {name or path.resolve().name: versions}
    models = {each.name: _versions(each) for each in sorted(path.iterdir()) if each.is_dir()} if name is None else {}
    models = {model: each for model, each in models.items() if each}
    if not models:
        expected = f"MODEL/VERSION/x{SUFFIX}, where VERSION is a number"
        raise ServeSetupError("the folder holds no models", where=str(path), expected=expected)
    return models


def _versions(folder: Path) -> dict[str, Path]:
    """Return the artifacts of a model's folder by version, the lowest first. Raises: ServeSetupError."""
    numbers = [each for each in folder.iterdir() if each.is_dir() and each.name.isascii() and each.name.isdecimal()]
    found: dict[str, Path] = {}
    for each in sorted(numbers, key=lambda number: int(number.name)):
        files = sorted(each.glob(f"*{SUFFIX}"))
        if len(files) > 1:
            raise ServeSetupError("a version has several artifacts", where=str(each), found=len(files), expected="one")
        if files:
            found[each.name] = files[0]
    return found


# --- what is served ---------------------------------------------------------------------------------------------------
class ModelRepository:
    """Load, find and unload the models of a server; it belongs to one event loop.

    find: returns the artifacts as they are now, whenever a model is loaded again. A version whose file has not changed
    stays as it is; one that has is exchanged when the new one is warm. Requests that have begun end with the one that
    they began with.
    """

    def __init__(self, find: Callable[[], Artifacts], options: ServeOptions) -> None:
        self._find, self.options = find, options
        self._executor = ThreadPoolExecutor(options.batch.callers, "kernelyard-serve")
        self._served: dict[str, dict[str, ServedModel]] = {name: {} for name in find()}
        self._states: dict[tuple[str, str], tuple[str, str]] = {}  # of what is not served: state and reason
        self._metrics: dict[tuple[str, str], ModelMetrics] = {}
        self._lock = asyncio.Lock()
        self.stopping = False
        self.loaded = False
        self.reloading: asyncio.Future[None] | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of all models, those that are not served included."""
        return list(self._served)

    @property
    def is_ready(self) -> bool:
        """Return whether every model is loaded or was unloaded on purpose, and the server is not stopping."""
        return self.loaded and not self.stopping

    def get(self, name: str, version: str = "") -> ServedModel:
        """Return a version of a model, the highest where none is named.

        Raises: UnknownServedModelError, ModelNotReadyError, StoppingError.
        """
        if self.stopping:
            raise StoppingError("the server is stopping")
        versions = self._served.get(name)
        if versions is None:
            known = ", ".join(self._served)
            raise UnknownServedModelError("no such model is served", found=repr(name)[:200], expected=known)
        if not versions:
            state, reason = next((v for k, v in self._states.items() if k[0] == name), (LOADING, ""))
            raise ModelNotReadyError("the model is not ready", where=name, found=f"{state} {reason}".strip())
        if not version:
            return next(reversed(versions.values()))
        if version not in versions:
            found, expected = repr(version)[:200], ", ".join(versions)
            raise UnknownServedModelError("the model has no such version", where=name, found=found, expected=expected)
        return versions[version]

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that are served, the lowest first."""
        return list(self._served.get(name, ()))

    def index(self) -> list[IndexEntry]:
        """Return every version of every model, with its state."""
        ready = {(name, version): (READY, "") for name, served in self._served.items() for version in served}
        return [IndexEntry(*key, *state) for key, state in sorted({**self._states, **ready}.items())]

    def metrics(self) -> list[ModelMetrics]:
        """Return the counts of all models that were ever served."""
        return list(self._metrics.values())

    def list_served(self) -> list[ServedModel]:
        """Return all versions of all models that are served."""
        return [each for versions in self._served.values() for each in versions.values()]

    def require_control(self, name: str, parameters: Collection[str]) -> str:
        """Return the name of a model that a client wants to be loaded or unloaded.

        Raises: UnknownServedModelError where clients may not, RequestFormatError for parameters.
        """
        if not self.options.control:
            hint = "start the server without --no-control"
            raise UnknownServedModelError("clients may not load and unload models", hint=hint)
        unknown = set(parameters) - {"unload_dependents"}  # there are no dependents
        if unknown:
            found = ", ".join(sorted(unknown))[:200]
            raise RequestFormatError("models are loaded as they lie on disk", found=found, expected="no parameters")
        return name

    async def load_all(self) -> None:
        """Load every model; the server is ready then. Raises: the error of the first one that cannot be loaded."""
        for name in self.names:
            await self.load(name)
        self.loaded = True

    async def load(self, name: str) -> None:
        """Load a model, or what is new of it. Raises: UnknownServedModelError, ArtifactError, ...; all is as before."""
        async with self._lock:
            artifacts = await asyncio.to_thread(self._find)
            if name not in artifacts:
                known = ", ".join(artifacts)
                raise UnknownServedModelError("no such model is there", found=repr(name)[:200], expected=known)
            old = self._served.setdefault(name, {})
            new: dict[str, ServedModel] = {}
            for version, path in artifacts[name].items():
                new[version] = await self._load_version(name, version, path, old.get(version))
            self._served[name] = new
            self._forget_states(name)

    async def _load_version(self, name: str, version: str, path: Path, old: ServedModel | None) -> ServedModel:
        """Return the version as it lies on disk: the old one where it is the same."""
        try:
            if old is not None and FileStamp.of(path) == old.stamp:
                return old
            self._states[name, version] = LOADING, ""
            metrics = self._metrics.setdefault((name, version), ModelMetrics(name, version))
            return await asyncio.to_thread(ServedModel.load, path, metrics, self.options, self._executor)
        except Exception as error:
            ours: KernelyardError = as_ours(error)
            self._states[name, version] = UNAVAILABLE, f"[{ours.code}] {ours.message}"
            raise ours from error

    def _forget_states(self, name: str) -> None:
        for key in [key for key in self._states if key[0] == name]:
            del self._states[key]

    async def unload(self, name: str) -> None:
        """Serve a model no more; requests that have begun are answered. Raises: UnknownServedModelError."""
        async with self._lock:
            if name not in self._served:
                raise UnknownServedModelError("no such model is served", found=repr(name)[:200])
            for version in self._served[name]:
                self._states[name, version] = UNAVAILABLE, "unloaded"
            self._served[name] = {}

    def gauges(self) -> Mapping[str, Mapping[str, float]]:
        """Return what is so now: requests that wait and calls that run, by model."""
        served = self.list_served()
        return {
            "requests_waiting": {each.metrics.labels: each.batcher.waiting for each in served},
            "calls_running": {each.metrics.labels: each.batcher.running for each in served},
        }

    def close(self) -> None:
        """Release the threads that call, when no request is left."""
        self._executor.shutdown(wait=False, cancel_futures=True)
