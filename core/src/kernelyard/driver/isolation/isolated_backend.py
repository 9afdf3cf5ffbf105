"""Isolated backends: a plugin's codegen runs in a process of its own, and what ends that process is named.

For plugins that ask for it (`isolate = true` in the manifest), and those that the user does not trust
(KERNELYARD_ISOLATE, --isolate). Before such a backend is offered a model here, that is rehearsed in the process, so
that native code of patterns and checks crashes there; its regions go there as text, its modules come back as they are
saved.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelyard.errors import (
    CodegenError,
    OptionError,
    PluginCrashError,
    PluginError,
    PluginTimeoutError,
    UnknownBackendError,
)
from kernelyard.ir import IRModule, to_text
from kernelyard.ir.printer import large_constants
from kernelyard.ir.visitor import reachable_functions
from kernelyard.patterns.registry import Answer, FusionPattern
from kernelyard.plugins.discovery.manager import ALLOW_VARIABLE, PluginManager, get_manager
from kernelyard.plugins.interfaces.backend import Backend
from kernelyard.plugins.interfaces.quantization_scheme import QuantizationScheme
from kernelyard.plugins.sandbox.guard import DEFAULT_TIMEOUT, TIMEOUT_VARIABLE, progress, timeout_seconds
from kernelyard.plugins.sandbox.sandbox_probe import VARIABLE as PROBE_VARIABLE
from kernelyard.plugins.sandbox.worker_process import Crashed, Hung, Worker, cause, python_main
from kernelyard.runtime.abi.module import RuntimeModule
from kernelyard.runtime.abi.spec import Fields
from kernelyard.runtime.artifact import kyar, safetensors_format
from kernelyard.runtime.artifact.blobs import restore_blobs
from kernelyard.runtime.artifact.container import open_container
from kernelyard.target import Target
from kernelyard.transform.layout.border_agreement import BorderLayouts
from kernelyard.transform.partition.region import Region
from kernelyard.variables import EnvironmentVariable

log = logging.getLogger(__name__)

VARIABLE = EnvironmentVariable(
    "KERNELYARD_ISOLATE", "`a,b` or `all`: run codegen of these plugins in a process of its own", "what manifests say"
)
MEMORY_VARIABLE = EnvironmentVariable(
    "KERNELYARD_ISOLATE_MEMORY", "megabytes of address space that such a process may take", "no limit"
)
TEXT, CONSTANTS, ARTIFACT = "module.txt", "constants.safetensors", "compiled.kyar"  # files that are exchanged
ALL = "all"
_isolated: set[str] = set()  # by `isolated`
_LIBRARY = os.path.dirname(os.__file__)
_FRAME = re.compile(r'File "(.*)", line (\d+) in (\S+)')  # of faulthandler


@contextmanager
def isolate_plugins(names: Iterable[str]) -> Iterator[None]:
    """Isolate plugins within a `with` block, "all" for each of them; the command line's `--isolate NAME`.

    Raises: UnknownBackendError for a name that no installed plugin has.
    """
    before = set(_isolated)
    for name in names:
        if name != ALL:
            get_manager().check_name(name)
        _isolated.add(name)
    try:
        yield
    finally:
        _isolated.clear()
        _isolated.update(before)


@dataclass(frozen=True)
class Question:
    """Hold a request to the process, about the module in `folder`.

    regions: name and symbol of each to compile; None: rehearse the offer of the module. seconds: for the answer, or a
    part of it. megabytes: of address space, 0 for no limit.
    """

    plugin: str
    folder: str
    target: Mapping[str, Any]
    options: Mapping[str, Any]
    regions: Sequence[tuple[str, str]] | None
    seconds: float
    megabytes: int


def isolate(backend: Backend, manager: PluginManager, target: Target, options: Mapping[str, Any]) -> Backend:
    """Return the backend as it is or, where its manifest or the user says so, isolated.

    options: those of the compile for this backend.
    Raises: OptionError where they cannot be handed over, UnknownBackendError where the variable names no plugin.
    """
    plugin = next((each for each in manager.plugins if each.name == backend.name and each.entry is not None), None)
    if plugin is None or plugin.manifest is None:
        return backend
    wanted = _isolated | _names_of_variable(manager)
    if not (plugin.manifest.isolate or wanted & {backend.name, ALL}):
        return backend
    try:
        is_plain = json.loads(json.dumps(options)) == options
    except (TypeError, ValueError):
        is_plain = False
    if not is_plain:
        expected = "numbers, texts, lists and dictionaries"
        raise OptionError(
            f"options of {backend.name}, which is isolated, are no JSON", found=options, expected=expected
        )
    return IsolatedBackend(backend, target, options, _megabytes())


def _names_of_variable(manager: PluginManager) -> set[str]:
    names = {name.strip() for name in VARIABLE.get().split(",")} - {""}
    for name in sorted(names - {ALL}):
        try:
            manager.check_name(name)
        except UnknownBackendError as error:
            error.where = f"{VARIABLE}={VARIABLE.get()}"
            raise
    return names


class IsolatedBackend(Backend):
    """A backend whose native code meets a model in another process first, and compiles it there."""

    def __init__(self, inner: Backend, target: Target, options: Mapping[str, Any], megabytes: int) -> None:
        self.name = inner.name
        self.merge_composites = inner.merge_composites
        self.states_costs = inner.states_costs
        self._inner = inner
        self._target = target
        self._options = options
        self._megabytes = megabytes
        self._refusable: set[str] = set()

    def patterns(self, target: Target) -> Sequence[FusionPattern]:
        return self._inner.patterns(target)

    def quantization_schemes(self, target: Target) -> Sequence[QuantizationScheme]:
        return self._inner.quantization_schemes(target)

    def prepare(self, module: IRModule) -> IRModule:
        """Rehearse the offer first. Raises: PluginCrashError, PluginTimeoutError."""
        count = sum(len(function.bindings) for function in module.graph_functions().values())
        self._ask(module, None, count, lambda _answer, _folder: None)
        return self._inner.prepare(module)

    def check_region(self, region: Region) -> Answer:
        return self._inner.check_region(region)

    def optimize(self, region: IRModule) -> IRModule:
        return self._inner.optimize(region)

    def border_layouts(self, region: Region) -> BorderLayouts | None:
        return self._inner.border_layouts(region)

    def may_refuse(self, region: Region) -> bool:
        return region.symbol in self._refusable

    def codegen(self, regions: Sequence[Region], options: Mapping[str, Any]) -> RuntimeModule:
        """Compile regions in the process. Raises: PluginCrashError, PluginTimeoutError, CodegenError."""
        module = regions[0].module
        names = {id(function): name for name, function in module.functions.items()}
        wanted = [(names[id(region.function)], region.symbol) for region in regions]
        reached = reachable_functions(module, tuple(name for name, _ in wanted))
        part = IRModule({name: function for name, function in module.functions.items() if name in reached})

        def load(answer: Mapping[str, Any], folder: Path) -> RuntimeModule:
            self._refusable.update(answer["refusable"])
            return _read(folder / ARTIFACT)

        return self._ask(part, wanted, sum(len(region.composites()) for region in regions), load)

    def _ask(
        self,
        module: IRModule,
        regions: Sequence[tuple[str, str]] | None,
        items: int,
        take: Callable[[Mapping[str, Any], Path], Any],
    ) -> Any:
        """Return what `take` makes of the answer, and of the files that the process wrote."""
        seconds = timeout_seconds(items)
        with tempfile.TemporaryDirectory(prefix="kernelyard-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            _write(module, folder)
            target = asdict(self._target)
            question = Question(self.name, name, target, self._options, regions, seconds, self._megabytes)
            answer = self._answer(asdict(question), seconds)
            if "error" in answer:
                error = answer["error"]
                raise CodegenError(error["message"], found=error["found"], expected=error["expected"])
            return take(answer, folder)

    def _answer(self, question: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        worker = Worker(python_main("kernelyard.driver.isolation.isolated_process"), _environment(self.name))
        try:
            worker.ask(self.name, max(seconds, DEFAULT_TIMEOUT), progress)
            return worker.ask(question, seconds, progress)
        except Crashed as crash:
            log.warning("%s ended its process:\n%s", self.name, crash.last_words)
            place = _crash_location(crash.last_words)
            raise PluginCrashError(f"it ended its process with {cause(crash.status)}{place}") from None
        except Hung:
            hint = f"set {TIMEOUT_VARIABLE} to wait longer"
            raise PluginTimeoutError(f"its process gave no answer within {seconds:g} s", hint=hint) from None
        except OSError as error:
            raise PluginError("no process can be started for an isolated plugin", found=error) from error
        finally:
            worker.close()


def _write(module: IRModule, folder: Path) -> None:
    (folder / TEXT).write_text(to_text(module, constants="elided"), encoding="utf-8")
    constants = {constant.digest: constant.data for constant in large_constants(module)}
    with open(folder / CONSTANTS, "wb") as file:
        file.writelines(safetensors_format.to_parts(constants))


def _environment(name: str) -> dict[str, str]:
    """Return the variables of the process, which has that plugin alone, and does not isolate it again."""
    others = {key: value for key, value in os.environ.items() if key != VARIABLE}
    return {**others, ALLOW_VARIABLE: name, PROBE_VARIABLE: "0"}


def _megabytes() -> int:
    text = MEMORY_VARIABLE.get("0")
    if not text.isdecimal():
        raise OptionError(f"{MEMORY_VARIABLE} is no number of megabytes", found=text)
    return int(text)


def _read(path: Path) -> RuntimeModule:
    """Return the one module of an artifact, with its blobs."""
    contents = open_container(path)
    contents.check()
    (entry,) = contents.manifest.each("modules", Fields)
    module = kyar.load_module(entry, contents)
    if "blobs" in entry:
        restore_blobs(module, entry, contents, module.kind)
    return module


def _crash_location(last_words: str) -> str:
    """Return where faulthandler says that a crashed process was: the innermost place outside of Python's library."""
    for file, line, function in _FRAME.findall(last_words.partition("Current thread")[2]):
        if "site-packages" in file or not file.startswith(_LIBRARY):
            return f" in {function} ({os.path.basename(file)}:{line})"
    return ""
