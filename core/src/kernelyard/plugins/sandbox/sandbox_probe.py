"""Sandbox probes: load plugins in a subprocess first, so that native code that crashes spares the user's process.

The verdict is cached for as long as nothing changes that it could depend on, so that later starts only look it up. A
timeout is cached for ten minutes: the plugin may hang, or the machine may have been busy.
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
from kernelyard.plugins.hookspecs import API_VERSION
from kernelyard.plugins.interfaces.manifest import manifest_path
from kernelyard.plugins.sandbox.guard import DEFAULT_TIMEOUT, TIMEOUT_VARIABLE, timeout_seconds
from kernelyard.records import NamedTuple
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.installed.entry_points import EntryPoint, distribution_of
from kernelyard.variables import EnvironmentVariable

log = logging.getLogger(__name__)

VARIABLE = EnvironmentVariable(
    "KERNELYARD_PLUGIN_TRIAL", "0: use plugins without probing them in a process of their own first", "1"
)
STEPS = {"load": "import", "make": "hooks", "probe": "probe"}  # by the name used in messages
BUSY_SECONDS = 600.0  # how long a timeout is cached, as each probe would take as long again
UNKNOWN = b""
# Killed from outside, by the user or for lack of memory: says nothing about the plugin, and is not cached.
_FROM_OUTSIDE = {-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGHUP}
# Prefixes of environment variables that decide which libraries and devices a process gets.
_LOADER_VARIABLES = ("LD_", "DYLD_", "CUDA_VISIBLE_DEVICES", "KERNELYARD_")


class Verdict(NamedTuple):
    """The result of a probe.

    reason: why the plugin must not be loaded into this process; "" if it may. until: when the verdict expires, in
    seconds since the epoch; 0: never.
    """

    reason: str = ""
    until: float = 0.0

    def hint(self, name: str) -> str:
        """Return what the user of a plugin can do next."""
        if not self.until:
            return f"exclude it with -p no:{name} or fix it; `kernelyard doctor --retry` probes it again"
        clock = time.strftime("%H:%M", time.localtime(self.until))
        again = f"it is probed again after {clock}, or at once by `kernelyard doctor --retry`"
        return f"{again}; {TIMEOUT_VARIABLE} extends the time limit, -p no:{name} excludes it"


PASSED = Verdict()


def probe_plugins(entries: Sequence[EntryPoint], hooks: Sequence[Sequence[str]]) -> list[Verdict]:
    """Return the verdict on the plugin of each entry point.

    hooks: those that each implements; they are called, and the results are probed. Plugins are probed concurrently.
    """
    if not entries or not is_wanted():
        return [PASSED] * len(entries)
    memory = DiskCache("plugins")
    with ThreadPoolExecutor(max(1, min(len(entries), os.cpu_count() or 1))) as threads:
        return list(threads.map(lambda entry, names: _look_up_verdict(memory, entry, names), entries, hooks))


def forget(entries: Sequence[EntryPoint], hooks: Sequence[Sequence[str]]) -> None:
    """Invalidate the cached verdicts of these plugins."""
    for entry, names in zip(entries, hooks, strict=True):
        DiskCache("plugins").put(_key(entry, names), UNKNOWN)


def is_wanted() -> bool:
    """Return False if the user disabled probes, or if no further Python process can be started."""
    return VARIABLE.get("1") != "0" and bool(sys.executable) and not getattr(sys, "frozen", False)


def _look_up_verdict(memory: DiskCache, entry: EntryPoint, hooks: Sequence[str]) -> Verdict:
    key = _key(entry, hooks)
    known = _read(memory.get(key))
    if known is not None:
        return known
    verdict, lasts = _probe(entry, hooks)
    if lasts:
        memory.put(key, json.dumps(verdict).encode())
    return verdict


def _read(known: bytes | None) -> Verdict | None:
    """Parse a cached verdict; None if there is none, it has expired, or another release wrote it."""
    try:
        verdict = Verdict(*json.loads(known or b"null"))
        return None if 0 < verdict.until < time.time() else verdict
    except (ValueError, TypeError):
        return None


def _probe(entry: EntryPoint, hooks: Sequence[str]) -> tuple[Verdict, bool]:
    """Probe the plugin; return the verdict, and whether it may be cached."""
    from kernelyard.plugins.sandbox.worker_process import (  # rarely needed: verdicts are cached
        Crashed,
        Hung,
        Worker,
        cause,
        python_main,
    )

    worker = Worker(python_main("kernelyard.plugins.sandbox.sandbox_process"), {**os.environ, VARIABLE: "0"})
    seconds = timeout_seconds()
    step = ""
    try:
        worker.ask({"entry": entry.value, "hooks": list(hooks)}, max(seconds, DEFAULT_TIMEOUT))
        for step in STEPS:
            if not worker.ask(step, seconds):
                break
    except Crashed as crash:
        if not step:
            log.warning("plugins cannot be probed in a subprocess: %s", crash)
            return PASSED, False
        log.warning("%s ended its sandbox process:\n%s", entry.value, crash.last_words)
        ended = f"ended the process with {cause(crash.status)} in its {STEPS[step]}"
        return Verdict(ended), crash.status not in _FROM_OUTSIDE
    except Hung:
        hung = Verdict(f"its {STEPS.get(step)} did not finish within {seconds:g} s", time.time() + BUSY_SECONDS)
        return (hung, True) if step else (PASSED, False)
    except OSError as error:
        log.warning("plugins cannot be probed in a subprocess: %s", error)
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
