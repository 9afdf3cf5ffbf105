"""Bisection: count what a compile does, and do only the first so many of it, to find what makes a result wrong.

Source: LLVM, "OptBisect: Using -opt-bisect-limit to debug optimization errors".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kernelyard.errors import OptionError
from kernelyard.transform.pass_infra.pass_base import Instrument
from kernelyard.variables import EnvironmentVariable

BISECT_LIMIT = EnvironmentVariable(
    "KERNELYARD_BISECT_LIMIT",
    "`n`: apply only the first n passes, regions and kernels of all compiles, and print which; -1: print all",
    "apply all, print nothing",
)
_LINE = re.compile(r"^BISECT: (NOT )?running (pass|region|kernel) \((\d+)\) (\S+)(?: for (.*))?$", re.MULTILINE)


class Decision(NamedTuple):
    """Hold one thing that a compile does, or leaves.

    kind: "pass" (that can be left out), "region" (what a backend takes) or "kernel" (of an operator). number: from 1,
    in the order of the compile. name: of the pass, pattern or operator. place: the node of the model, or "".
    """

    number: int
    kind: str
    name: str
    place: str = ""
    applied: bool = True

    def __str__(self) -> str:
        place = f" for {self.place}" if self.place else ""
        return f"BISECT: {'' if self.applied else 'NOT '}running {self.kind} ({self.number}) {self.name}{place}"


class Bisection(Instrument):
    """Lets the first `limit` passes, regions and kernels be applied; None or a negative limit lets all.

    Passes that a program cannot do without are not asked for. A region that is left out falls to the backends after it
    and to kernels, a kernel to the operator's reference. write: is given each line, `BISECT: running pass (12) name`.

    Example:
        >>> from kernelyard.transform.pass_infra.pass_base import PassContext
        >>> bisection = Bisection(1, write=print)
        >>> with PassContext(instruments=[bisection]) as context:
        ...     context.allows("kernel", "tanh", "layer 0"), context.allows("kernel", "exp")
        BISECT: running kernel (1) tanh for layer 0
        BISECT: NOT running kernel (2) exp
        (True, False)
    """

    def __init__(self, limit: int | None = None, write: Callable[[str], object] | None = None) -> None:
        self.limit = limit if limit is None or limit >= 0 else None
        self.count = 0
        self._write = write

    def should_apply(self, kind: str, name: str, place: str) -> bool:
        self.count += 1
        applied = self.limit is None or self.count <= self.limit
        if self._write is not None:
            self._write(str(Decision(self.count, kind, name, place, applied)))
        return applied


def decisions_of(text: str) -> Iterator[Decision]:
    """Yield the decisions that lines of a text tell of.

    Example:
        >>> [decision] = decisions_of("loading\\nBISECT: NOT running region (3) dnnl.relu for layer 7\\n")
        >>> decision.number, decision.name, decision.place, decision.applied
        (3, 'dnnl.relu', 'layer 7', False)
    """
    for left, kind, number, name, place in _LINE.findall(text):
        yield Decision(int(number), kind, name, place, not left)


_OF_PROCESS: list[Bisection] = []  # one for all compiles of the process: numbers go on


def bisection_of_environment() -> Bisection:
    """Return the counter that KERNELYARD_BISECT_LIMIT asks for. Raises: OptionError for no number."""
    text = BISECT_LIMIT.get()
    try:
        limit = int(text)
    except ValueError:
        raise OptionError(f"{BISECT_LIMIT} is no number", found=text or "nothing", expected="-1, 0, 1, ...") from None
    if not _OF_PROCESS:
        _OF_PROCESS.append(Bisection(limit, write=lambda line: print(line, file=sys.stderr, flush=True)))
    _OF_PROCESS[0].limit = limit if limit >= 0 else None
    return _OF_PROCESS[0]
