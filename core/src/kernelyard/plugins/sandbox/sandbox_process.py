"""Main of the sandbox process: run each step of a plugin's probe on request, so that a crash names its step."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kernelyard.plugins.sandbox.worker_process import leave_no_core_file, private_streams
from kernelyard.runtime.installed.entry_points import EntryPoint

log = logging.getLogger(__name__)


class Steps:
    """The steps of loading one plugin; each needs the ones before it.

    entry: what its entry point says. hooks: those that its manifest promises.
    """

    def __init__(self, entry: str, hooks: Sequence[str]) -> None:
        self._entry = EntryPoint("probed", entry)
        self._hooks = hooks
        self._module: Any = None
        self._parts: list[Any] = []

    def load(self) -> None:
        """Import it."""
        self._module = self._entry.load()

    def make(self) -> None:
        """Call its hooks."""
        self._parts = [getattr(self._module, hook)() for hook in self._hooks]

    def probe(self) -> None:
        """Ask its parts whether their library is there."""
        for part in self._parts:
            if hasattr(part, "probe"):
                part.probe()


def main() -> None:
    """Serve requests: first the plugin, then names of steps. The answer is whether the step succeeded."""
    questions, answers = private_streams()
    leave_no_core_file()

    def answer(value: bool) -> None:
        print(json.dumps(value), file=answers, flush=True)

    steps = Steps(**json.loads(questions.readline()))
    by_name = {"load": steps.load, "make": steps.make, "probe": steps.probe}
    answer(True)
    for line in questions:
        answer(_succeeds(by_name[json.loads(line)]))


def _succeeds(step: Callable[[], None]) -> bool:
    try:
        step()
    except BaseException:  # the process that loads the plugin will meet the same error, and report it
        log.debug("a plugin raised in its sandbox probe", exc_info=True)
        return False
    return True
