"""The user's compilers: how one is found, and how a tool is run so that what it says reaches the user."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelyard.errors import ToolchainError

TIMEOUT_SECONDS = 600
MAX_MESSAGE = 4000


@dataclass(frozen=True)
class Toolchain:
    """A language's compilers. variable: the environment variable that names one; names: tried in order without it."""

    language: str
    variable: str
    names: tuple[str, ...]
    install_hint: str

    def find(self, command: str | None = None) -> tuple[str, ...]:
        """Return the words that call the compiler: `command`, or the one of this machine.

        Raises: ToolchainError with the line that installs one.
        """
        chosen = command or os.environ.get(self.variable, "").strip()
        for name in (chosen,) if chosen else self.names:
            words = tuple(shlex.split(name))
            found = shutil.which(words[0])
            if found:
                return (found, *words[1:])
        kind = f"{self.language} compiler"
        raise ToolchainError(
            f"there is no {kind} called {chosen}" if chosen else f"no {kind} was found",
            expected=None if chosen else ", ".join(self.names),
            hint=self.install_hint,
        )

    def run(self, command: Sequence[str], folder: Path, hint: str | None = None) -> str:
        """Run a command of this toolchain in `folder`, and return its output.

        Raises: ToolchainError with what it said when it failed; `hint` is how to go on then.
        """
        kind = f"{self.language} compiler"
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"the {kind} cannot be run", where=command[0], found=error) from error
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip()
            found = message[:MAX_MESSAGE] or f"exit status {done.returncode}"
            raise ToolchainError(f"the {kind} failed", where=command[0], found=found, hint=hint)
        return done.stdout.decode(errors="replace")
