"""Trials: native code that ends the process it runs in must not end the user's.

Before an installed plugin is taken into use here, that is done in a process of its own, and what came of it is
remembered for as long as nothing changes that it could depend on: later starts look it up. All plugins are treated
alike.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kernelyard.errors import PluginError
from kernelyard.plugins.guard import DEFAULT_TIMEOUT, timeout_seconds
from kernelyard.plugins.hookspecs import API_VERSION
from kernelyard.plugins.manifest import manifest_path
from kernelyard.runtime.installed.disk_cache import DiskCache
from kernelyard.runtime.installed.entry_points import EntryPoint, distribution_of
from kernelyard.variables import EnvironmentVariable

log = logging.getLogger(__name__)

VARIABLE = EnvironmentVariable(
    "KERNELYARD_PLUGIN_TRIAL", "0: use plugins without probing them in a process of their own first", "1"
)
STEPS = {"load": "import", "make": "hooks", "probe": "probe"}  # what a person calls each
RETRY_HINT = "leave it out with -p no:{name} or fix it; `kernelyard doctor --retry` tries it again"
PASSED, UNKNOWN = b"passed", b""
# Ended by somebody else: the user, the system's lack of memory. Says nothing of the plugin the next time.
_FROM_OUTSIDE = {-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGHUP}
# What decides, outside of the installation, which libraries and devices a process gets.
_LOADER_VARIABLES = ("LD_", "DYLD_", "CUDA_VISIBLE_DEVICES", "KERNELYARD_")


def try_out(entries: Sequence[EntryPoint], hooks: Sequence[Sequence[str]]) -> list[str]:
    """For each entry point: why its plugin must not be loaded into this process, "" where nothing is against it.

    hooks: those that each implements; they are called, and what they make is probed. Several are tried at once.
    """
    if not entries or not is_wanted():
        return [""] * len(entries)
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


def _remembered(memory: DiskCache, entry: EntryPoint, hooks: Sequence[str]) -> str:
    key = _key(entry, hooks)
    known = memory.get(key)
    if known:
        return "" if known == PASSED else known.decode()
    reason, lasts = _tried(entry, hooks)
    if lasts:
        memory.put(key, reason.encode() or PASSED)
    return reason


def _tried(entry: EntryPoint, hooks: Sequence[str]) -> tuple[str, bool]:
    """Probe the plugin; return its fault ("" for none) and whether the verdict may be cached."""
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
            return "", False
        log.warning("%s ended its trial process:\n%s", entry.value, crash.last_words)
        return f"ended the process with {cause(crash.status)} in its {STEPS[step]}", crash.status not in _FROM_OUTSIDE
    except Hung:
        return (f"its {STEPS[step]} did not finish within {seconds:g} s", True) if step else ("", False)
    except OSError as error:
        log.warning("plugins cannot be loaded in a trial process: %s", error)
        return "", False
    finally:
        worker.close()
    return "", True


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
