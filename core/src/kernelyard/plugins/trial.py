"""Trials: native code that ends the process it runs in must not end the user's.

Before an installed plugin is taken into use here, that is done in a process of its own, and what came of it is
remembered for as long as nothing changes that it could depend on: later starts look it up. That one took too long is
remembered for ten minutes: it may hang, or the machine may have been busy. All plugins are treated alike.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kernelyard.errors import PluginError
from kernelyard.plugins.guard import DEFAULT_TIMEOUT, TIMEOUT_VARIABLE, timeout_seconds
from kernelyard.plugins.hookspecs import API_VERSION
from kernelyard.plugins.manifest import manifest_path
from kernelyard.records import NamedTuple
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.installed.entry_points import EntryPoint, distribution_of
from kernelyard.variables import EnvironmentVariable

log = logging.getLogger(__name__)

VARIABLE = EnvironmentVariable(
    "KERNELYARD_PLUGIN_TRIAL", "0: use plugins without probing them in a process of their own first", "1"
)
STEPS = {"load": "import", "make": "hooks", "probe": "probe"}  # what a person calls each
BUSY_SECONDS = 600.0  # for which a plugin that took too long is not tried again, as each try takes as long
UNKNOWN = b""
# Ended by somebody else: the user, the system's lack of memory. Says nothing of the plugin the next time.
_FROM_OUTSIDE = {-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGHUP}
# What decides, outside of the installation, which libraries and devices a process gets.
_LOADER_VARIABLES = ("LD_", "DYLD_", "CUDA_VISIBLE_DEVICES", "KERNELYARD_")


class Verdict(NamedTuple):
    """What a trial found.

    reason: why the plugin must not be loaded into this process, "" where nothing is against it. until: when that is
    forgotten, in seconds since the epoch; 0: never, while nothing changes.
    """

    reason: str = ""
    until: float = 0.0

    def hint(self, name: str) -> str:
        """Return how the user of a plugin goes on."""
        if not self.until:
            return f"leave it out with -p no:{name} or fix it; `kernelyard doctor --retry` tries it again"
        clock = time.strftime("%H:%M", time.localtime(self.until))
        again = f"it is tried again after {clock}, or at once by `kernelyard doctor --retry`"
        return f"{again}; {TIMEOUT_VARIABLE} gives it longer, -p no:{name} leaves it out"


PASSED = Verdict()


def try_out(entries: Sequence[EntryPoint], hooks: Sequence[Sequence[str]]) -> list[Verdict]:
    """Return the verdict on the plugin of each entry point.

    hooks: those that each implements; they are called, and what they make is probed. Several are tried at once.
    """
    if not entries or not is_wanted():
        return [PASSED] * len(entries)
    memory = DiskCache("plugins")
    with ThreadPoolExecutor(max(1, min(len(entries), os.cpu_count() or 1))) as threads:
        return list(threads.map(lambda entry, names: _remembered(memory, entry, names), entries, hooks))


def forget(entries: Sequence[EntryPoint], hooks: Sequence[Sequence[str]]) -> None:
    """Let the next trial be a real one."""
    for entry, names in zip(entries, hooks, strict=True):
        DiskCache("plugins").put(_key(entry, names), UNKNOWN)


def is_wanted() -> bool:
    """Return False where the user turned trials off, and where no further Python can be started."""
    return VARIABLE.get("1") != "0" and bool(sys.executable) and not getattr(sys, "frozen", False)


def _remembered(memory: DiskCache, entry: EntryPoint, hooks: Sequence[str]) -> Verdict:
    key = _key(entry, hooks)
    known = _read(memory.get(key))
    if known is not None:
        return known
    verdict, lasts = _tried(entry, hooks)
    if lasts:
        memory.put(key, json.dumps(verdict).encode())
    return verdict


def _read(known: bytes | None) -> Verdict | None:
    """Return a verdict as it was kept; None where there is none, or it is of the past, or of another release's form."""
    try:
        verdict = Verdict(*json.loads(known or b"null"))
        return None if 0 < verdict.until < time.time() else verdict
    except (ValueError, TypeError):
        return None


def _tried(entry: EntryPoint, hooks: Sequence[str]) -> tuple[Verdict, bool]:
    """Probe the plugin; return the verdict, and whether it may be cached."""
    from kernelyard.plugins.worker_process import (  # inside: verdicts are remembered
        Crashed,
        Hung,
        Worker,
        cause,
        python_main,
    )

    worker = Worker(python_main("kernelyard.plugins.trial_process"), {**os.environ, VARIABLE: "0"})
    seconds = timeout_seconds()
    step = ""
    try:
        worker.ask({"entry": entry.value, "hooks": list(hooks)}, max(seconds, DEFAULT_TIMEOUT))
        for step in STEPS:
            if not worker.ask(step, seconds):
                break
    except Crashed as crash:
        if not step:
            log.warning("plugins cannot be loaded in a trial process: %s", crash)
            return PASSED, False
        log.warning("%s ended its trial process:\n%s", entry.value, crash.last_words)
        ended = f"ended the process with {cause(crash.status)} in its {STEPS[step]}"
        return Verdict(ended), crash.status not in _FROM_OUTSIDE
    except Hung:
        hung = Verdict(f"its {STEPS.get(step)} did not finish within {seconds:g} s", time.time() + BUSY_SECONDS)
        return (hung, True) if step else (PASSED, False)
    except OSError as error:
        log.warning("plugins cannot be loaded in a trial process: %s", error)
        return PASSED, False
    finally:
        worker.close()
    return PASSED, True


# --- what a verdict depends on ---------------------------------------------------------------------------------------
def _key(entry: EntryPoint, hooks: Sequence[str]) -> str:
    machine = platform.uname()
    facts = [
        API_VERSION,
        [*distribution_of(entry), entry.value, list(hooks)],
        [sys.version, sys.executable, sys.prefix],
        [machine.system, machine.node, machine.release, machine.version, machine.machine],
        sorted(item for item in os.environ.items() if item[0].startswith(_LOADER_VARIABLES)),
        _distributions(entry.dist.site) if entry.dist is not None else (),  # the plugin's libraries are among them
        _files(entry),
    ]
    return json.dumps(facts)


def _distributions(folder: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))))
    except OSError:
        return ()


def _files(entry: EntryPoint) -> list[tuple[str, int, int]]:
    """Return the plugin's files with size and time: it may change under one version, as where it is developed."""
    try:
        folder = manifest_path(entry.module).parent
    except PluginError:
        return []
    found: list[tuple[str, int, int]] = []
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            file = os.path.join(path, name)
            with suppress(OSError):  # it may go at any time
                status = os.stat(file)
                found.append((file, status.st_size, status.st_mtime_ns))
    return found
